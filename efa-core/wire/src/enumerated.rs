//! Enums that list their variants.

/// Declares an enum, and its constant `ALL` with all variants in the order of the declaration.
#[macro_export]
macro_rules! enumerated {
    (
        $(#[$doc:meta])*
        pub enum $name:ident {
            $($(#[$about:meta])* $variant:ident $(= $number:literal)?,)*
        }
    ) => {
        $(#[$doc])*
        pub enum $name {
            $($(#[$about])* $variant $(= $number)?,)*
        }

        impl $name {
            /// All variants, in the order of their declaration.
            pub const ALL: [$name; [$(stringify!($variant)),*].len()] = [$($name::$variant),*];
        }
    };
}
