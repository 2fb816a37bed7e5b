//! The command `kas upgrade-check`.

use cli::{CommandResult, print};
use settings::{ConfigError, KeyLocations};

use super::ConfigFile;
use crate::config::{Config, key_changes};

/// List keys of an older configuration that have another effect now
///
/// The file is that of an older version of kas. Each key that this version has renamed or removed, or reads in another way, is one
/// line with file, line, column, key and remedy, whether the change matters for this installation or not. docs/upgrade.md has the
/// changes beside the configuration. Other files are not read: `kas check-config` checks them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct UpgradeCheck {
    #[command(flatten)]
    config: ConfigFile,
}

const EXAMPLES: &str = "\
Examples:
  kas upgrade-check --config /etc/kas/kas.yaml

Exit codes:
  0   this version accepts the file
  64  this version refuses the file; the errors name the keys";

impl UpgradeCheck {
    /// Prints the changes, and checks the file.
    pub(super) fn run(self) -> CommandResult {
        let file = &self.config.path;
        let keys = KeyLocations::parse(&files::read_config(file)?);
        let changes = key_changes(&keys);
        for (key, change) in &changes {
            let line = ConfigError::about(file, &keys, key, change.sentence());
            print(&format!("{line}\n"))?;
        }
        Config::read(file)?;
        print(&format!("{}: accepted; {} changes to look at\n", file.display(), changes.len()))
    }
}
