//! A device's table of parameters, and the `Config` that follows from it.

use super::error::SpecError;
use super::value::{Fault, Value, number};
use super::values::{Parameter, Values};

/// Makes a device's table `PARAMETERS`, and its `Config` with a field for each row. A row is
/// `name: type = accepts, default, about;`. A parameter in brackets before a row is another way to give that row's
/// value. `Config` is parsed from a spec, and shows its values as a spec gives them. Every
/// device has the parameters `bs` and `size`. Its `Profile`, which checks the values, is in scope.
macro_rules! parameters {
    (
        $(#[$config:meta])*
        pub struct Config;
        $(#[$table:meta])*
        pub const PARAMETERS = {
            $($([$other:ident = $other_accepts:expr, $other_default:literal, $other_about:literal])?
            $name:ident: $type:ty = $accepts:expr, $default:literal, $about:literal;)*
        }
    ) => {
        $(#[$config])*
        #[derive(Debug, Clone)]
        pub struct Config {
            $(pub(in crate::driver) $name: $type,)*
            /// The values as in a spec, but with spaces between them.
            shown: String,
        }

        $(#[$table])*
        pub const PARAMETERS: &[$crate::driver::parameter::Parameter] = &[$(
            $($crate::driver::parameter::Parameter::new(
                stringify!($other), $other_accepts, $other_default, $other_about
            ),)?
            $crate::driver::parameter::Parameter::new(stringify!($name), $accepts, $default, $about),
        )*];

        impl Config {
            /// The names of each field's parameters.
            const FIELDS: &[&[&str]] = &[$(&[stringify!($name) $(, stringify!($other))?]),*];
        }

        impl $crate::driver::parameter::FromSpec for Config {
            const PARAMETERS: &'static [$crate::driver::parameter::Parameter] = PARAMETERS;

            fn from_values(
                values: &$crate::driver::parameter::Values<'_>,
            ) -> Result<Self, $crate::driver::parameter::SpecError> {
                let mut fields = Self::FIELDS.iter();
                let mut next = || values.one_of(fields.next().expect("each field has names"));
                let config = Self {
                    $($name: $crate::driver::parameter::Field::from_value(next()?),)*
                    shown: values.show(Self::FIELDS),
                };
                config.check_all(config.bs, config.size)?;
                Ok(config)
            }
        }

        impl std::str::FromStr for Config {
            type Err = $crate::driver::parameter::SpecError;

            /// Reads `name=value,name=value`; an empty text leaves everything at its default.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let words = $crate::driver::parameter::words(text);
                let values = $crate::driver::parameter::Values::parse(PARAMETERS, words)?;
                $crate::driver::parameter::FromSpec::from_values(&values)
            }
        }

        impl std::fmt::Display for Config {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.shown)
            }
        }
    };
}

pub(in crate::driver) use parameters;

/// A `Config` that [`parameters`] makes.
pub trait FromSpec: Sized {
    /// The parameters.
    const PARAMETERS: &'static [Parameter];

    /// Reads the values of a spec.
    fn from_values(values: &Values<'_>) -> Result<Self, SpecError>;
}

/// The type of a field of a `Config`.
pub(in crate::driver) trait Field {
    /// The field for a parameter's value; `None` if it is not given and has no default.
    ///
    /// # Panics
    /// If the parameter cannot have this value.
    fn from_value(value: Option<Value>) -> Self;
}

macro_rules! fields {
    ($($type:ty: $value:ident => $field:expr;)*) => {
        $(impl Field for $type {
            fn from_value($value: Option<Value>) -> Self {
                $field
            }
        })*
    };
}

fields! {
    u16: value => number(value);
    u32: value => number(value);
    u64: value => number(value);
    usize: value => number(value);
    bool: value => number::<u64>(value) == 1;
    Option<Fault>: value => if let Some(Value::Fault(fault)) = value { Some(fault) } else { None };
    Option<(u64, u64)>: value => if let Some(Value::Sectors(first, last)) = value { Some((first, last)) } else { None };
}
