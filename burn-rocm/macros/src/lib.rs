//! The attribute `#[traced]`, which names each op method in the trace.
//!
//! One attribute names all of some 400 methods. So no method can be forgotten or misnamed, and each
//! stays a one-line delegation.

use proc_macro::TokenStream;
use quote::{ToTokens, quote};
use syn::{
    Expr, FnArg, GenericArgument, ImplItem, ItemImpl, Pat, PathArguments, Stmt, Type, parse_macro_input,
    parse_quote,
};

/// Stands on an `impl` block. It makes each function of the block begin with
/// `hip::trace::op_of("its name", || the dtype, |shapes| ..)` and keep the result until the function
/// returns. The dtype is that of the first tensor argument. A function without a tensor argument
/// takes it from the first argument that is a dtype or host data. A function with neither has an
/// empty dtype. The shapes are those of all tensor arguments, also in an `Option` or a `Vec`.
#[proc_macro_attribute]
pub fn traced(arguments: TokenStream, item: TokenStream) -> TokenStream {
    if !arguments.is_empty() {
        return quote!(compile_error!("`traced` takes no arguments");).into();
    }
    let mut block = parse_macro_input!(item as ItemImpl);
    for item in &mut block.items {
        if let ImplItem::Fn(function) = item {
            let name = function.sig.ident.to_string();
            let inputs = function.sig.inputs.iter();
            let dtype: Expr = inputs
                .clone()
                .find_map(of_tensor)
                .or_else(|| inputs.clone().find_map(named))
                .unwrap_or_else(|| parse_quote!(""));
            let shapes: Vec<Stmt> = function.sig.inputs.iter().filter_map(shapes).collect();
            let op: Stmt = match shapes.is_empty() {
                true => parse_quote!(let _op = ::hip::trace::op(#name, || #dtype);),
                false => parse_quote! {
                    let _op = ::hip::trace::op_of(#name, || #dtype, |op_shapes| { #(#shapes)* });
                },
            };
            function.block.stmts.insert(0, op);
        }
    }
    block.into_token_stream().into()
}

/// The dtype of an argument that is a tensor or a reference to a tensor.
fn of_tensor(argument: &FnArg) -> Option<Expr> {
    let FnArg::Typed(argument) = argument else { return None };
    let Pat::Ident(name) = &*argument.pat else { return None };
    let name = &name.ident;
    match &*argument.ty {
        ty if is(ty, &["RocmTensor", "RocmQTensor"]) => {
            Some(parse_quote!(::burn_backend::TensorMetadata::dtype(&#name).name()))
        }
        Type::Reference(ty) if is(&ty.elem, &["RocmTensor", "RocmQTensor"]) => {
            Some(parse_quote!(::burn_backend::TensorMetadata::dtype(#name).name()))
        }
        _ => None,
    }
}

/// Adds the shape of an argument that is a tensor, or the shapes of one that has tensors.
fn shapes(argument: &FnArg) -> Option<Stmt> {
    let FnArg::Typed(argument) = argument else { return None };
    let Pat::Ident(name) = &*argument.pat else { return None };
    let name = &name.ident;
    const TENSORS: &[&str] = &["RocmTensor", "RocmQTensor"];
    let ty = match &*argument.ty {
        Type::Reference(ty) => &*ty.elem,
        ty => ty,
    };
    if is(ty, TENSORS) {
        return Some(parse_quote!(op_shapes.add(#name.dims());));
    }
    let several = is(ty, &["Option", "Vec"]) && inner(ty).is_some_and(|ty| is(ty, TENSORS));
    several.then(|| parse_quote!(#name.iter().for_each(|tensor| op_shapes.add(tensor.dims()));))
}

/// The type's one argument.
fn inner(ty: &Type) -> Option<&Type> {
    let Type::Path(ty) = ty else { return None };
    let PathArguments::AngleBracketed(arguments) = &ty.path.segments.last()?.arguments else { return None };
    match arguments.args.first() {
        Some(GenericArgument::Type(ty)) => Some(ty),
        _ => None,
    }
}

/// The dtype of an argument that is itself a dtype, or host data.
fn named(argument: &FnArg) -> Option<Expr> {
    let FnArg::Typed(argument) = argument else { return None };
    let Pat::Ident(name) = &*argument.pat else { return None };
    let name = &name.ident;
    if is(&argument.ty, &["DType", "FloatDType", "IntDType", "BoolDType"]) {
        return Some(parse_quote!(::burn_std::DType::from(#name).name()));
    }
    is(&argument.ty, &["TensorData"]).then(|| parse_quote!(crate::burn::dtype(&#name).name()))
}

/// Whether the last segment of the type's path is one of `names`.
fn is(ty: &Type, names: &[&str]) -> bool {
    let Type::Path(ty) = ty else { return false };
    ty.path.segments.last().is_some_and(|last| names.iter().any(|name| last.ident == name))
}
