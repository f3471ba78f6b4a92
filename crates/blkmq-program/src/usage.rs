//! Says in one line what is wrong with a command line.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, Error};

use crate::failure::Failure;

/// Turns what the parser of the command line of program `P` found into one line that names the offending word and the
/// accepted ones.
pub(crate) fn explain<P: CommandFactory>(error: &Error) -> Failure {
    let text = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Failure::Asked(error.render().to_string()),
        ErrorKind::InvalidSubcommand => {
            let word = word(error, ContextKind::InvalidSubcommand);
            let hint = hint(error, ContextKind::SuggestedSubcommand);
            format!("'{word}' is not a command{hint}: {}", commands(&P::command()))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("a command is missing; accepted: {}", commands(&P::command()))
        }
        ErrorKind::UnknownArgument => {
            let word = word(error, ContextKind::InvalidArg);
            let hint = hint(error, ContextKind::SuggestedArg);
            format!("'{word}' is not accepted here{hint}: {}", arguments(&P::command()))
        }
        ErrorKind::MissingRequiredArgument => {
            let program = P::command();
            let command = called(&program).map(|command| format!(" {}", command.get_name())).unwrap_or_default();
            format!("{}; '{}{command} --help' explains them", first_lines(error), program.get_name())
        }
        _ => first_lines(error),
    };
    Failure::Input(text)
}

fn word(error: &Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(word)) => word.clone(),
        _ => String::new(),
    }
}

/// What stands between a refusal and the words that are accepted: the most likely of them, if the parser knows one.
fn hint(error: &Error, kind: ContextKind) -> String {
    let near = match error.get(kind) {
        Some(ContextValue::String(near)) => Some(near),
        Some(ContextValue::Strings(near)) => near.first(),
        _ => None,
    };
    near.map_or_else(|| "; accepted".to_owned(), |near| format!("; did you mean '{near}'? Accepted"))
}

fn commands(program: &Command) -> String {
    let names: Vec<&str> = program.get_subcommands().map(Command::get_name).collect();
    names.join(", ")
}

/// The command that was called, if the program has commands.
fn called(program: &Command) -> Option<&Command> {
    std::env::args_os().skip(1).find_map(|word| program.find_subcommand(&word))
}

/// What the command that was called accepts; the program itself, if it has no commands; the commands, if none was
/// called.
fn arguments(program: &Command) -> String {
    let mut names: Vec<String> = match called(program) {
        None if program.has_subcommands() => {
            program.get_subcommands().map(|command| command.get_name().to_owned()).collect()
        }
        command => command.unwrap_or(program).get_arguments().map(name).collect(),
    };
    names.push("--help".to_owned());
    names.join(", ")
}

fn name(argument: &Arg) -> String {
    match (argument.get_long(), argument.get_value_names()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some([name, ..])) => name.to_string(),
        (None, _) => argument.get_id().to_string(),
    }
}

/// What the parser says before it begins to explain usage, on one line.
fn first_lines(error: &Error) -> String {
    let text = error.render().to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}
