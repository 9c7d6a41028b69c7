//! The header of a GGUF file: metadata and the table of tensors.
//!
//! The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::collections::BTreeMap;

use crate::weights::{POINTER, is_pointer};

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
}

/// A tensor's entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// As the file has it: the innermost axis first. The product fits in `usize`.
    pub(super) dims: Vec<usize>,
    /// The number of the element type.
    pub(super) kind: u32,
    /// Where its bytes begin, from the start of the file.
    pub(super) start: usize,
}

/// The contents of a header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, Value>,
    pub(super) tensors: BTreeMap<String, Entry>,
}

/// Reads little-endian values one after the other. Errors are texts.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The entries that lists may still have.
    left: usize,
}

type Read<T> = Result<T, String>;

/// How deep lists of lists may be.
const DEEPEST: usize = 4;
/// More entries than all lists of a file have: a vocabulary of 262,144 tokens has about a million. An
/// entry may take 32 times the memory that it takes in the file.
const MOST_ENTRIES: usize = 1 << 24;

/// The fewest bytes that a value of a type takes.
fn least(kind: u32) -> usize {
    match kind {
        2 | 3 => 2,
        4..=6 => 4,
        // A text has a length, and a list a type and a length.
        8 | 10..=12 => 8,
        9 => 12,
        _ => 1,
    }
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| {
            format!("cut off: expected {count} bytes at {}, found {}", self.at, self.bytes.len() - self.at)
        })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A 64-bit number that is a size or an offset.
    fn size(&mut self) -> Read<usize> {
        let at = self.at;
        let number = u64::from_le_bytes(self.array()?);
        usize::try_from(number).map_err(|_| format!("expected a size at byte {at}, found {number}"))
    }

    /// A number of things that take at least `least` bytes each.
    fn count(&mut self, least: usize) -> Read<usize> {
        self.count_up_to(usize::MAX, least)
    }

    /// [`count`](Self::count), of at most `most` things.
    fn count_up_to(&mut self, most: usize, least: usize) -> Read<usize> {
        let at = self.at;
        let count = self.size()?;
        let fit = (self.bytes.len() - self.at) / least;
        if count > fit {
            return Err(format!("damaged: expected at most {fit} entries at byte {at}, found {count}"));
        }
        if count > most {
            let found = format!("found more at byte {at}");
            return Err(format!("expected at most {MOST_ENTRIES} entries in all lists together, {found}"));
        }
        Ok(count)
    }

    fn text(&mut self) -> Read<String> {
        let at = self.at;
        let len = self.count(1)?;
        let bytes = self.take(len)?.to_vec();
        String::from_utf8(bytes).map_err(|_| format!("damaged: expected a text at byte {at}"))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Read<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(u32::from_le_bytes(self.array()?).into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            9 if depth < DEEPEST => {
                let of = self.u32()?;
                let count = self.count_up_to(self.left, least(of))?;
                self.left -= count;
                Value::List((0..count).map(|_| self.value(of, depth + 1)).collect::<Read<_>>()?)
            }
            10 => Value::Unsigned(u64::from_le_bytes(self.array()?)),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => {
                return Err(format!("damaged: expected a type of values, found {other} at byte {}", self.at));
            }
        })
    }
}

impl Header {
    /// Parses the header at the start of a file's bytes.
    pub(super) fn parse(bytes: &[u8]) -> Read<Self> {
        let mut reader = Reader { bytes, at: 0, left: MOST_ENTRIES };
        let magic: [u8; 4] = reader.array()?;
        if is_pointer(bytes) {
            return Err(POINTER.to_owned());
        }
        if &magic != b"GGUF" {
            return Err(format!(
                "expected a GGUF file, which starts with \"GGUF\", found \"{}\"",
                magic.escape_ascii()
            ));
        }
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(format!("expected version 2 or 3 of GGUF, found {version}"));
        }
        // A tensor's entry has a name, its rank, a type and an offset; a pair has a key and a type.
        let tensors = reader.count(8 + 4 + 4 + 8)?;
        let pairs = reader.count(8 + 4)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..pairs {
            let key = reader.text()?;
            let kind = reader.u32()?;
            metadata.insert(key, reader.value(kind, 0)?);
        }
        let mut entries = BTreeMap::new();
        for _ in 0..tensors {
            let name = reader.text()?;
            let rank = reader.u32()? as usize;
            if !(1..=4).contains(&rank) {
                return Err(format!("tensor `{name}`: expected 1 to 4 axes, found {rank}"));
            }
            let dims: Vec<usize> = (0..rank).map(|_| reader.size()).collect::<Read<_>>()?;
            if dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim)).is_none() {
                return Err(format!("tensor `{name}`: expected fewer than 2^64 elements, found {dims:?}"));
            }
            let kind = reader.u32()?;
            entries.insert(name, Entry { dims, kind, start: reader.size()? });
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(&Value::Unsigned(alignment)) if alignment.is_power_of_two() => alignment as usize,
            Some(other) => {
                return Err(format!("`general.alignment`: expected a power of 2, found {other:?}"));
            }
        };
        let data = reader.at.next_multiple_of(alignment);
        for (name, entry) in &mut entries {
            let start = entry.start.checked_add(data).filter(|&start| start <= bytes.len());
            entry.start = start.ok_or_else(|| {
                format!("cut off: tensor `{name}` begins {} bytes after the header", entry.start)
            })?;
        }
        Ok(Self { metadata, tensors: entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with lists of a type of values, each of so many by its count, and of these bytes.
    fn lists(kind: u32, lists: &[(u64, usize)]) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend((lists.len() as u64).to_le_bytes());
        for (index, &(count, len)) in lists.iter().enumerate() {
            bytes.extend(1u64.to_le_bytes());
            bytes.push(b'a' + index as u8);
            [9, kind].iter().for_each(|kind: &u32| bytes.extend(kind.to_le_bytes()));
            bytes.extend(count.to_le_bytes());
            bytes.resize(bytes.len() + len, 0);
        }
        bytes
    }

    #[test]
    fn a_list_has_no_more_entries_than_bytes_for_them() {
        for (kind, each) in
            [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)]
        {
            let Header { metadata, .. } =
                Header::parse(&lists(kind, &[(100, 100 * each)])).expect("a header");
            assert!(matches!(&metadata["a"], Value::List(list) if list.len() == 100), "type {kind}");
            let error = Header::parse(&lists(kind, &[(101, 100 * each)])).expect_err("a count too large");
            assert!(error.contains("expected at most 100 entries at byte 41, found 101"), "{error}");
        }
        // Empty texts, and empty lists of bytes.
        for (kind, each) in [(8, 8), (9, 12)] {
            assert!(Header::parse(&lists(kind, &[(100, 100 * each)])).is_ok());
            let error = Header::parse(&lists(kind, &[(101, 100 * each)])).expect_err("a count too large");
            assert!(error.contains("expected at most 100 entries at byte 41, found 101"), "{error}");
        }
    }

    #[test]
    fn the_elements_of_a_tensor_can_be_counted() {
        let parse = |dims: [u64; 2]| {
            let mut bytes = lists(0, &[]);
            // One tensor, `t`, of f32 and at the start of the data.
            bytes[8] = 1;
            bytes.extend(1u64.to_le_bytes());
            bytes.push(b't');
            bytes.extend(2u32.to_le_bytes());
            dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
            bytes.extend(0u32.to_le_bytes());
            bytes.extend(0u64.to_le_bytes());
            bytes.resize(bytes.len().next_multiple_of(32), 0);
            Header::parse(&bytes)
        };
        assert!(parse([1 << 31, 1 << 32]).is_ok());
        let error = parse([1 << 33, 1 << 33]).expect_err("too many elements");
        assert!(error.contains("`t`: expected fewer than 2^64 elements, found [8589934592"), "{error}");
    }

    #[test]
    fn all_lists_together_have_a_limit() {
        let bytes = lists(0, &[(3, 3), (MOST_ENTRIES as u64 - 2, MOST_ENTRIES)]);
        let error = Header::parse(&bytes).expect_err("too many entries");
        assert!(error.contains("expected at most 16777216 entries in all lists together"), "{error}");
    }
}
