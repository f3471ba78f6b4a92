//! Bugs to plant: proof that the rig finds what it is for.

/// A bug that can be planted in the code on virtual CPUs, and only there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What is wrong with the code then, in one sentence.
    pub what: &'static str,
    /// The site in the code, as [`blkmq_virtual::sync::weaken`] knows it.
    pub(crate) site: &'static str,
}

/// All bugs that can be planted.
pub const MUTANTS: &[Mutant] = &[];
