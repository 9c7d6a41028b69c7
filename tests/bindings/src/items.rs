//! Reads every function, type and constant that the raw crates declare from their sources.

use std::fs;
use std::path::Path;

use syn::parse::{Parse, ParseStream};
use syn::{ForeignItemFn, Ident, Item, ItemEnum, LitInt, Token, Type, braced};

use crate::Result;

/// An item that AMD's headers must declare too. Types are in C++ notation.
pub(crate) struct Declared {
    /// `hip`, `rocblas`, `hipblaslt`, `miopen` or `rccl`: the library whose header declares it.
    pub(crate) library: &'static str,
    pub(crate) name: String,
    pub(crate) what: What,
}

pub(crate) enum What {
    Function {
        arguments: Vec<String>,
        result: String,
        optional: bool,
    },
    /// An integer, and its declared type.
    Constant {
        of: String,
        value: String,
    },
    /// A C enum, kept as a transparent integer.
    Enum,
    /// Another name of a type.
    Alias(String),
    /// A type that is only used through pointers.
    Opaque,
    /// A struct or union: the fields in order, and the alignment if it is forced.
    Record {
        union: bool,
        align: Option<String>,
        fields: Vec<(String, Type)>,
    },
}

impl Declared {
    /// The item on one line, as in the list of facts.
    pub(crate) fn text(&self) -> String {
        let Self { library, name, what } = self;
        match what {
            What::Function { arguments, result, .. } => {
                format!("{library} function {result} {name}({})", arguments.join(", "))
            }
            What::Constant { of, value } => format!("{library} constant {of} {name} = {value}"),
            What::Enum => format!("{library} enum {name}"),
            What::Alias(to) => format!("{library} alias {name} = {to}"),
            What::Opaque => format!("{library} opaque {name}"),
            What::Record { union, align, fields } => {
                let kind = if *union { "union" } else { "struct" };
                let align = align.as_ref().map_or(String::new(), |align| format!(" alignas({align})"));
                let fields: Vec<_> = fields.iter().map(|(name, ty)| format!("{} {name};", cpp(ty))).collect();
                format!("{library} {kind}{align} {name} {{ {} }}", fields.join(" "))
            }
        }
    }
}

/// The raw crates, and the library whose headers each follows.
const CRATES: [(&str, &str); 5] = [
    ("hip-sys", "hip"),
    ("rocblas-sys", "rocblas"),
    ("hipblaslt-sys", "hipblaslt"),
    ("miopen-sys", "miopen"),
    ("rccl-sys", "rccl"),
];

/// Everything that the raw crates under `directory` declare, in the order of the sources.
///
/// An item of an unknown kind is an error, because no item may be left out.
pub(crate) fn declared(directory: &Path) -> Result<Vec<Declared>> {
    let mut all = Vec::new();
    for (name, library) in CRATES {
        let sources = directory.join(name).join("src");
        let entries = fs::read_dir(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
        let mut files: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        files.sort();
        for file in files {
            let text = fs::read_to_string(&file)?;
            let at = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
            for item in syn::parse_file(&text).map_err(|error| at(&error))?.items {
                read(library, item, &mut all).map_err(|error| at(&error))?;
            }
        }
    }
    Ok(all)
}

fn read(library: &'static str, item: Item, all: &mut Vec<Declared>) -> Result<()> {
    let mut push = |name: String, what| all.push(Declared { library, name, what });
    match item {
        Item::Use(_) | Item::Mod(_) => {}
        Item::Const(item) if item.ident == "_" => {}
        Item::Const(item) => {
            let value = literal(&item.expr).ok_or_else(|| format!("{} is no literal", item.ident))?;
            push(item.ident.to_string(), What::Constant { of: checked(&item.ty)?, value });
        }
        Item::Type(item) => push(item.ident.to_string(), What::Alias(checked(&item.ty)?)),
        Item::Struct(item) => {
            let fields = fields(item.fields.iter())?;
            let what = match fields.as_slice() {
                [(name, _)] if name == "_private" => What::Opaque,
                _ => What::Record { union: false, align: alignment(&item.attrs)?, fields },
            };
            push(item.ident.to_string(), what);
        }
        Item::Union(item) => {
            let fields = fields(item.fields.named.iter())?;
            push(
                item.ident.to_string(),
                What::Record { union: true, align: alignment(&item.attrs)?, fields },
            );
        }
        // The definitions of the macros themselves.
        Item::Macro(item) if item.ident.is_some() => {}
        Item::Macro(item) => {
            let macro_name =
                item.mac.path.segments.last().map_or(String::new(), |last| last.ident.to_string());
            match macro_name.as_str() {
                "function_table" => {
                    let table: Table = item.mac.parse_body()?;
                    for (function, optional) in table.functions {
                        let arguments =
                            function.sig.inputs.iter().map(argument).collect::<Result<Vec<String>>>()?;
                        let result = match &function.sig.output {
                            syn::ReturnType::Default => "void".into(),
                            syn::ReturnType::Type(_, ty) => checked(ty)?,
                        };
                        let name = function.sig.ident.to_string();
                        push(name, What::Function { arguments, result, optional });
                    }
                }
                "c_enum" => {
                    let item: ItemEnum = item.mac.parse_body()?;
                    push(item.ident.to_string(), What::Enum);
                    for variant in item.variants {
                        let value = variant.discriminant.as_ref().and_then(|(_, value)| literal(value));
                        let value = value.ok_or_else(|| format!("{} is no literal", variant.ident))?;
                        push(variant.ident.to_string(), What::Constant { of: item.ident.to_string(), value });
                    }
                }
                "handles" => {
                    let handles: Handles = item.mac.parse_body()?;
                    for (opaque, handle) in handles.0 {
                        push(opaque.to_string(), What::Opaque);
                        push(handle.to_string(), What::Alias(format!("{opaque}*")));
                    }
                }
                other => return Err(format!("the macro `{other}` is not known").into()),
            }
        }
        _ => return Err("an item of a kind that is not known".into()),
    }
    Ok(())
}

fn fields<'a>(fields: impl Iterator<Item = &'a syn::Field>) -> Result<Vec<(String, Type)>> {
    let named = |field: &syn::Field| {
        let name = field.ident.as_ref().ok_or("a field without a name")?;
        checked(&field.ty)?;
        Ok((name.to_string(), field.ty.clone()))
    };
    fields.map(named).collect()
}

fn argument(argument: &syn::FnArg) -> Result<String> {
    match argument {
        syn::FnArg::Typed(argument) => checked(&argument.ty),
        syn::FnArg::Receiver(_) => Err("a C function has no self".into()),
    }
}

/// The `n` of `repr(C, align(n))`.
fn alignment(attributes: &[syn::Attribute]) -> Result<Option<String>> {
    let mut align = None;
    let mut c = false;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("C") {
                c = true;
                return Ok(());
            }
            if meta.path.is_ident("align") {
                let content;
                syn::parenthesized!(content in meta.input);
                align = Some(content.parse::<LitInt>()?.to_string());
                return Ok(());
            }
            Err(meta.error("neither C nor align"))
        })?;
    }
    if c { Ok(align) } else { Err("a struct without repr(C)".into()) }
}

fn literal(value: &syn::Expr) -> Option<String> {
    match value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(value), .. }) => Some(value.base10_digits().into()),
        _ => None,
    }
}

/// As [`cpp`], but a type without a C++ name is an error.
fn checked(ty: &Type) -> Result<String> {
    let name = cpp(ty);
    if name.contains('?') { Err(format!("no C++ type is known for {name}").into()) } else { Ok(name) }
}

/// The C++ notation for a type of the raw crates.
pub(crate) fn cpp(ty: &Type) -> String {
    match ty {
        Type::Ptr(pointer) if pointer.mutability.is_some() => format!("{}*", cpp(&pointer.elem)),
        Type::Ptr(pointer) => format!("{} const*", cpp(&pointer.elem)),
        Type::Tuple(tuple) if tuple.elems.is_empty() => "void".into(),
        Type::Array(array) => {
            format!("{}[{}]", cpp(&array.elem), literal(&array.len).unwrap_or("?".into()))
        }
        Type::Path(path) => {
            let name = path.path.segments.last().map_or("?".into(), |last| last.ident.to_string());
            match name.as_str() {
                "c_int" => "int",
                "c_uint" => "unsigned int",
                "c_ulonglong" => "unsigned long long",
                "c_char" => "char",
                "c_void" => "void",
                "f32" => "float",
                "f64" => "double",
                "usize" => "size_t",
                "u8" => "uint8_t",
                "i32" => "int32_t",
                "u32" => "uint32_t",
                "i64" => "int64_t",
                "u64" => "uint64_t",
                other => other,
            }
            .into()
        }
        _ => "?".into(),
    }
}

/// The body of `function_table!`.
struct Table {
    /// Each function, and whether it is optional.
    functions: Vec<(ForeignItemFn, bool)>,
}

impl Parse for Table {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        input.call(syn::Attribute::parse_outer)?;
        input.parse::<Token![pub]>()?;
        input.parse::<Token![struct]>()?;
        input.parse::<Ident>()?;
        let body;
        braced!(body in input);
        let mut functions = Vec::new();
        for section in ["required", "optional"] {
            let name: Ident = body.parse()?;
            if name != section {
                return Err(syn::Error::new(name.span(), format!("expected `{section}`")));
            }
            let content;
            braced!(content in body);
            while !content.is_empty() {
                functions.push((content.parse()?, section == "optional"));
            }
        }
        Ok(Self { functions })
    }
}

/// The body of `handles!`: pairs of an opaque type and the pointer to it.
struct Handles(Vec<(Ident, Ident)>);

impl Parse for Handles {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut pairs = Vec::new();
        while !input.is_empty() {
            input.call(syn::Attribute::parse_outer)?;
            let opaque = input.parse()?;
            input.parse::<Token![=>]>()?;
            pairs.push((opaque, input.parse()?));
            input.parse::<Token![;]>()?;
        }
        Ok(Self(pairs))
    }
}
