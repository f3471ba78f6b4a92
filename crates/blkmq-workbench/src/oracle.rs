//! How near our BFQ is to Linux's, on recordings of Linux's decisions.

mod bars;
mod recording;
mod score;

pub use self::bars::{GROUPS, Group, most_made};
pub use self::recording::Recording;
pub use self::score::{Score, Share};
