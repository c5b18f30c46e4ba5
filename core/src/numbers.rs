//! Numbers that are part of the C ABI, by macros that `tests/tests/header` reads for the C header:
//! the comments are for C programmers, too.

/// Numbers that C programs use: a module of constants, with their names in words.
/// `tests/tests/header` reads these blocks for the C header, so the comments are for C programmers,
/// too.
#[macro_export]
macro_rules! consts {
    ($(#[$m:meta])* $name:ident : $ty:ty { $($(#[$cm:meta])* $c:ident = $v:expr),* $(,)? }) => {
        $(#[$m])*
        #[allow(missing_docs)] // of members whose names are those of verbs
        pub mod $name {
            $($(#[$cm])* pub const $c: $ty = $v;)*

            /// The name of a value, for messages; `?` for one that is not listed.
            pub fn name(value: $ty) -> &'static str {
                c_name(value).and_then(|name| name.to_str().ok()).unwrap_or("?")
            }

            /// The name of a value, if it is listed.
            pub fn c_name(value: $ty) -> Option<&'static core::ffi::CStr> {
                $(if value == $c {
                    let name = concat!(stringify!($c), "\0").as_bytes();
                    return core::ffi::CStr::from_bytes_with_nul(name).ok();
                })*
                None
            }
        }
    };
}
/// An enumeration of which each member has a text; as [`crate::consts!`] for the C header.
#[macro_export]
macro_rules! numbered {
    ($(#[$m:meta])* $name:ident: $text:ty {
        $($(#[$vm:meta])* $v:ident = $n:literal, $words:literal;)*
    }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        #[repr(u32)]
        pub enum $name { $($(#[$vm])* $v = $n,)* }

        impl $name {
            /// One line for people, without the numbers of the case.
            pub const fn text(self) -> $text {
                match self { $($name::$v => $words,)* }
            }

            /// The member of a number, if it is one.
            pub const fn from_u32(n: u32) -> Option<Self> {
                match n { $($n => Some($name::$v),)* _ => None }
            }
        }
    };
}
