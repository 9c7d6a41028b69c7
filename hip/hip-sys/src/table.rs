//! Macros for function tables and C enums.

/// Declares a library's function table: a struct with one C function pointer for each field, and a
/// loader that fills it.
///
/// Functions after `optional` are `Option`s, because some versions of the library lack them.
#[macro_export]
macro_rules! function_table {
    (
        $(#[$meta:meta])*
        pub struct $table:ident {
            required { $( $(#[$rm:meta])* fn $r:ident( $($ra:ident : $rt:ty),* $(,)? ) -> $rr:ty; )* }
            optional { $( $(#[$om:meta])* fn $o:ident( $($oa:ident : $ot:ty),* $(,)? ) -> $or:ty; )* }
        }
    ) => {
        $(#[$meta])*
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        pub struct $table {
            $( $(#[$rm])* pub $r: unsafe extern "C" fn($($ra: $rt),*) -> $rr, )*
            $( $(#[$om])* pub $o: Option<unsafe extern "C" fn($($oa: $ot),*) -> $or>, )*
        }

        impl $table {
            /// The symbols without which the table can't be filled.
            pub const REQUIRED: &'static [&'static core::ffi::CStr] = &[
                $( match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($r), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("an identifier has no NUL"),
                }, )*
            ];
            /// The symbols that some versions of the library lack.
            pub const OPTIONAL: &'static [&'static core::ffi::CStr] = &[
                $( match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($o), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("an identifier has no NUL"),
                }, )*
            ];

            /// Fills the table from a symbol lookup; `Err` names the first required symbol that is
            /// missing.
            ///
            /// # Safety
            /// For each name, `symbol` must return the address of the C function of that name and
            /// of the signature declared here. It must stay valid while the table is used.
            pub unsafe fn load(
                mut symbol: impl FnMut(&core::ffi::CStr) -> Option<core::ptr::NonNull<core::ffi::c_void>>,
            ) -> Result<Self, &'static core::ffi::CStr> {
                let mut required = Self::REQUIRED.iter();
                // A table without optional functions leaves this one unused.
                #[allow(unused_mut, unused_variables)]
                let mut optional = Self::OPTIONAL.iter();
                Ok(Self {
                    $( $r: {
                        let name = *required.next().expect("one name a field");
                        let address = symbol(name).ok_or(name)?;
                        // SAFETY: the caller vouches for the address and the signature.
                        unsafe {
                            core::mem::transmute::<
                                core::ptr::NonNull<core::ffi::c_void>,
                                unsafe extern "C" fn($($ra: $rt),*) -> $rr,
                            >(address)
                        }
                    }, )*
                    $( $o: {
                        let name = *optional.next().expect("one name a field");
                        // SAFETY: the caller vouches for the address and the signature.
                        symbol(name).map(|address| unsafe {
                            core::mem::transmute::<
                                core::ptr::NonNull<core::ffi::c_void>,
                                unsafe extern "C" fn($($oa: $ot),*) -> $or,
                            >(address)
                        })
                    }, )*
                })
            }
        }
    };
}

/// Declares a C enum as a transparent integer with one constant for each value.
///
/// It is not a Rust enum, because a newer library may return a value that the header lacks.
#[macro_export]
macro_rules! c_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $( $(#[$vm:meta])* $variant:ident = $value:literal ),* $(,)? }
    ) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub i32);

        $( $(#[$vm])* pub const $variant: $name = $name($value); )*

        impl $name {
            /// The constant's name in AMD's header; `None` for a value that the header lacks.
            #[allow(unreachable_patterns)]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some(stringify!($variant)), )*
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{}({})", stringify!($name), self.0),
                }
            }
        }
    };
}
