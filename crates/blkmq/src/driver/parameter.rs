//! The parameters of devices: the values that they accept, and how a device reads those that a spec gives.

mod error;
mod table;
pub(super) mod units;
mod value;
mod values;

pub use self::error::SpecError;
pub(super) use self::table::{Field, FromSpec, parameters};
pub use self::value::{Accepts, Fault, Value, write_word};
pub(super) use self::values::join;
pub use self::values::{Opener, Parameter, Values, words};
