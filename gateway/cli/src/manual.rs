//! The commands `kas man` and `kas completion`.

use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::{CliError, CommandResult, print};

/// Prints a completion script.
pub fn completion(mut command: Command, shell: Shell) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "kas", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints the page of kas itself.
pub fn page(command: Command) -> CommandResult {
    let mut page = Vec::new();
    Man::new(command).render(&mut page).expect("writing to memory does not fail");
    print(&String::from_utf8_lossy(&page))
}

/// Writes a page for kas and one for each of its commands.
pub fn pages(command: Command, directory: &Path) -> CommandResult {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command, directory))
        .map_err(|error| CliError::output(format!("{}: {error}", directory.display())))
}
