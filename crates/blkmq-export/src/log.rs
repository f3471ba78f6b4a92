//! Where the server tells what happens to it.

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Clients come and go.
    Info,
    /// Something that should not happen, though the server goes on.
    Warning,
}

/// Takes the lines that a server has to say. Called by the server's threads, under no lock; it should return soon, for
/// a connection waits meanwhile. Every function of a level and a line is one.
pub trait Log: Send + Sync {
    /// One line without its end. What clients sent is in it with control characters escaped.
    fn line(&self, level: Level, text: &str);
}

impl<F: Fn(Level, &str) + Send + Sync> Log for F {
    fn line(&self, level: Level, text: &str) {
        self(level, text);
    }
}
