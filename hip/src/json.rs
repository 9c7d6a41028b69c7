//! Texts as JSON writes them.

use std::fmt::{self, Display, Write};

/// A text as JSON writes it (RFC 8259, section 7).
pub(crate) struct Json<'a>(pub(crate) &'a str);

impl Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for char in self.0.chars() {
            match char {
                '"' | '\\' => write!(f, "\\{char}")?,
                '\0'..' ' => write!(f, "\\u{:04x}", u32::from(char))?,
                _ => f.write_char(char)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(Json("a \"b\" \\ \n ä").to_string(), r#""a \"b\" \\ \u000a ä""#);
    }
}
