//! Machines with many cores, on which the block layer is modelled.
//!
//! What a model says is modelled, not measured. A [`Profile`] says of a machine how far apart its CPUs are, and where
//! these numbers come from; [`blkmq_vcpu::cache`] says what accesses to shared cache lines cost at such distances.
//! [`published`] has what others measured on such machines, and [`mod@compare`] holds a model against it.
//!
//! ```
//! use blkmq_simulate::Profile;
//! use blkmq_vcpu::cache::{Access, Cache, Costs};
//!
//! let profile = Profile::named("7950x").expect("it is one of the known ones");
//! let mut cache = Cache::new(profile.typical().expect("its distances were measured"), Costs::default());
//! let there = cache.access(0, 0, Access::Update, 0).done;
//! // From the first CPU of one chiplet to the first CPU of the other.
//! assert_eq!(cache.access(16, 0, Access::Update, there).done - there, 72_700);
//! ```

pub mod band;
pub mod compare;
mod host;
mod load;
mod machine;
mod matrix;
mod native;
mod pace;
mod point;
mod predict;
mod primitives;
mod profile;
pub mod published;
pub mod scaling;
mod stages;
mod tally;

pub use load::Load;
pub use machine::Machine;
pub use native::NativeLoad;
pub use point::{Each, Setting, Stop};
pub use predict::Predictor;
pub use profile::{Level, Profile};
pub use stages::{Private, Stages, Way};
