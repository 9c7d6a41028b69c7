//! Checks the structs that are given to `reload_parameters` in `prelude_registers.h`: each must list
//! its kernel's parameters in their order and with their types. AMD's compiler and lockstep mode read the kernel's
//! argument memory through the struct, so a wrong order gives wrong values there and nowhere else.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;

/// A type and a name: of a parameter, or of a struct's member.
type Declared = (String, String);

/// The words and signs of a source, without comments and preprocessor lines.
fn tokens(source: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in source.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let mut in_word = false;
        for c in line.split("//").next().unwrap_or_default().chars() {
            let word = c.is_alphanumeric() || c == '_';
            match found.last_mut() {
                Some(last) if word && in_word => last.push(c),
                _ if c.is_whitespace() => {}
                _ => found.push(c.to_string()),
            }
            in_word = word;
        }
    }
    found
}

/// The index at which the bracket that opens at `open` closes.
fn end_of(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("a bracket that does not close: {:?}", &tokens[open..(open + 10).min(tokens.len())]);
}

/// The parts between the commas outside all brackets.
fn parts(tokens: &[String]) -> Vec<&[String]> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "(" | "{" | "[" | "<" => depth += 1,
            ")" | "}" | "]" | ">" => depth -= 1,
            "," if depth == 0 => {
                found.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < tokens.len() {
        found.push(&tokens[start..]);
    }
    found
}

/// A declaration's type and name: `const T * x`, `u32 unused [ 3 ]`. `compute_t<T>` counts as `C`,
/// and `F`, some templates' name for f32, as `f32`.
fn declared(tokens: &[String]) -> Declared {
    let array = tokens.iter().position(|token| token == "[").unwrap_or(tokens.len());
    let (name, kind) = tokens[..array].split_last().unwrap();
    let words = kind.iter().chain(&tokens[array..]).map(|word| if word == "F" { "f32" } else { word });
    let kind = words.collect::<Vec<_>>().join(" ");
    (kind.replace("compute_t < T >", "C"), name.clone())
}

/// The members of every struct.
fn structs(tokens: &[String]) -> HashMap<String, Vec<Declared>> {
    let mut found = HashMap::new();
    for at in
        (0..tokens.len()).filter(|&at| tokens[at] == "struct" && tokens.get(at + 2).is_some_and(|t| t == "{"))
    {
        let (mut at, end, name) = (at + 3, end_of(tokens, at + 2), &tokens[at + 1]);
        let mut members = Vec::new();
        while at < end {
            let stop = (at..end).find(|&i| [";", "(", "{"].contains(&tokens[i].as_str())).unwrap_or(end);
            if tokens[stop] != ";" {
                // A function: up to the end of its body.
                let body = (stop..end).find(|&i| tokens[i] == "{").map_or(end, |open| end_of(tokens, open));
                at = body + 1;
                continue;
            }
            let own = !["static", "using", "constexpr", "friend"].contains(&tokens[at].as_str());
            let mut base: Vec<String> = Vec::new();
            for (index, part) in parts(&tokens[at..stop]).into_iter().enumerate().filter(|_| own) {
                let first_star = part.iter().position(|token| token == "*").unwrap_or(part.len());
                if index == 0 {
                    let array = part.iter().position(|token| token == "[").unwrap_or(part.len());
                    base = part[..first_star.min(array - 1)].to_vec();
                    members.push(declared(part));
                } else {
                    members.push(declared(&[&base, part].concat()));
                }
            }
            at = stop + 1;
        }
        found.insert(name.clone(), members);
    }
    found
}

/// The values that a braced list gives to a struct's members, in order, with those of nested
/// structs.
fn given(
    all: &HashMap<String, Vec<Declared>>,
    members: &[Declared],
    list: &[String],
) -> Result<Vec<Declared>, String> {
    let values = parts(list);
    if values.len() != members.len() {
        return Err(format!("{} values for {} members", values.len(), members.len()));
    }
    let mut found = Vec::new();
    for ((kind, name), value) in members.iter().zip(values) {
        match (value, all.get(kind)) {
            ([open, inner @ .., _], Some(members)) if open == "{" => {
                found.extend(given(all, members, inner)?)
            }
            ([value], _) => found.push((kind.clone(), value.clone())),
            _ => return Err(format!("member {name} is given {}", value.join(" "))),
        }
    }
    Ok(found)
}

/// The kernels of a source that read their parameters through a struct; `Err` says what does not
/// agree.
fn kernels(source: &str) -> Result<Vec<String>, String> {
    let tokens = tokens(source);
    let all = structs(&tokens);
    let read: Vec<&String> = tokens
        .windows(3)
        .filter(|three| three[0] == "reload_parameters" && three[1] == "(")
        .map(|three| &three[2])
        .collect();
    // Whether a variable that is read through `reload_parameters` has this struct's type.
    let is_read = |name: &str| {
        let of = tokens.iter().enumerate().filter(|(_, token)| *token == name).map(|(at, _)| at + 1);
        of.into_iter().any(|mut at| {
            if tokens.get(at).is_some_and(|token| token == "<") {
                at += tokens[at..].iter().position(|token| token == ">").unwrap() + 1;
            }
            at += usize::from(tokens.get(at).is_some_and(|token| token == "&"));
            tokens.get(at).is_some_and(|token| read.contains(&token))
        })
    };
    // If a function reads a template parameter's type, any struct that a kernel makes for a call
    // may be meant.
    let any = tokens.windows(3).any(|three| {
        three[1] == "&" && read.contains(&&three[2]) && three[0] != ">" && !all.contains_key(&three[0])
    });
    let made =
        |name: &str| tokens.windows(3).any(|three| three[0] == "(" && three[1] == name && three[2] == "{");
    let through: Vec<&String> = all.keys().filter(|name| is_read(name) || any && made(name)).collect();
    let mut found = Vec::new();
    for start in (0..tokens.len()).filter(|&at| tokens[at] == "__global__") {
        let void = start + tokens[start..].iter().position(|token| token == "void").unwrap();
        let (name, open) = (&tokens[void + 1], void + 2);
        let close = end_of(&tokens, open);
        let parameters: Vec<Declared> = parts(&tokens[open + 1..close]).into_iter().map(declared).collect();
        let body = close + 1..end_of(&tokens, close + 1);
        // A kernel whose only parameter is the struct.
        let kind = parameters.first().and_then(|(kind, _)| kind.split(' ').next());
        if kind.is_some_and(|kind| through.iter().any(|name| *name == kind)) {
            found.push(name.clone());
        }
        for at in body.clone().filter(|&at| through.contains(&&tokens[at])) {
            let Some(brace) =
                (at + 1..body.end).find(|&i| ["{", ";", "(", ")", "="].contains(&tokens[i].as_str()))
            else {
                continue;
            };
            if tokens[brace] != "{" {
                continue;
            }
            let list = &tokens[brace + 1..end_of(&tokens, brace)];
            let members = given(&all, &all[&tokens[at]], list).map_err(|why| format!("{name}: {why}"))?;
            for (index, member) in members.iter().enumerate() {
                // A struct that serves several kernels may have more members than this one has
                // parameters; this kernel must give them `nullptr`.
                let none = index >= parameters.len() && member.1 == "nullptr";
                if parameters.get(index) != Some(member) && !none {
                    return Err(format!(
                        "{name}: parameter {index} is {:?}, the struct's {member:?}",
                        parameters.get(index)
                    ));
                }
            }
            found.push(name.clone());
        }
    }
    Ok(found)
}

#[test]
fn structs_that_stand_for_parameters_have_them_in_their_order() {
    let mut checked = 0;
    for family in hip_kernels::families().iter().filter(|family| family.source.contains("reload_parameters("))
    {
        // Structs may stand in a header of the family.
        let headers = hip_kernels::HEADERS.iter().filter(|(name, _)| {
            !name.starts_with("prelude") && family.source.contains(&format!("#include \"{name}\""))
        });
        let source: String = headers.map(|(_, text)| *text).chain([family.source]).collect();
        match kernels(&source) {
            Ok(found) => {
                assert!(!found.is_empty(), "{}: nothing was recognised", family.name);
                println!("{}: {}", family.name, found.join(" "));
                checked += found.len();
            }
            Err(why) => panic!("{}: {why}", family.name),
        }
    }
    assert!(checked >= 20, "{checked} kernels");
}

#[test]
fn what_is_exchanged_widened_or_left_out_is_found() {
    let source = "struct Shape { u64 rows, len; };
        template <class T> struct Given { Shape s; const T *x, *y; u32 first, last; T *out; };
        template <class T> DEVICE void work(const Given<T> &given) { use(reload_parameters(given)); }
        template <class T>
        __global__ void whole(u64 rows, u64 len, const T *x, const T *y, u32 first, u32 last, T *out) {
            work(Given<T>{{rows, len}, x, y, first, last, out});
        }";
    assert_eq!(kernels(source), Ok(vec!["whole".to_owned()]));
    for (from, to) in [
        ("u32 first, u32 last, T *out) {", "u32 last, u32 first, T *out) {"),
        ("u32 first, last; T", "u64 first, last; T"),
        ("const T *x, const T *y, u32", "const T *y, const T *x, u32"),
        ("u64 rows, len;", "u64 rows; u32 len;"),
        ("x, y, first, last, out}", "x, y, last, first, out}"),
        ("const T *x, const T *y, u32", "const T *x, u32 more, const T *y, u32"),
        ("T *out; };", "};"),
    ] {
        assert!(source.contains(from), "{from}");
        assert!(kernels(&source.replace(from, to)).is_err(), "{to}");
    }
}
