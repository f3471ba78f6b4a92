//! The workbench: replays what Linux did and says where blkmq does otherwise.

pub mod blktrace;
mod classes;
pub mod order;
mod settings;
mod text;
mod trace_files;

pub use classes::Classes;
pub use settings::Settings;
pub use text::TextError;
pub use trace_files::TraceFiles;
