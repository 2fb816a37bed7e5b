//! `kas man` and `kas completion`: what the command line says of itself, for `man` and for shells.

use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use super::outcome::{Outcome, Refusal, say};

/// Prints a completion script.
pub(super) fn completion(mut command: Command, shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "kas", &mut script);
    say(&String::from_utf8_lossy(&script))
}

/// Prints the page of kas itself.
pub(super) fn page(command: Command) -> Outcome {
    let mut page = Vec::new();
    Man::new(command).render(&mut page).expect("writing to memory does not fail");
    say(&String::from_utf8_lossy(&page))
}

/// Writes a page for kas and one for each of its commands.
pub(super) fn pages(command: Command, directory: &Path) -> Outcome {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command, directory))
        .map_err(|error| Refusal::output(format!("{}: {error}", directory.display())))
}
