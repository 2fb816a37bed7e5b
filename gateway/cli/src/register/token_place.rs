//! The place for the token of an agent: a file, standard output, or a Secret of the cluster.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use secrecy::{ExposeSecret as _, SecretString};

use super::agent_token::{ActiveToken, names};
use crate::{CliError, CommandResult, chart::is_agent_token, print};

/// A place outside of the cluster, the value of `--token-output`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenOutput {
    /// A file that only its owner may read.
    File(PathBuf),
    /// Standard output.
    Stdout,
}

/// A file or standard output that a token can be written to.
pub(super) enum ReservedOutput {
    /// A new, empty file.
    File(File, PathBuf),
    /// Standard output.
    Stdout,
}

/// The state of a place for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceState {
    /// It has none.
    Empty,
    /// It has one, which is that of the agent, or of an unknown one.
    Full {
        /// The place names this agent.
        is_of_agent: bool,
    },
}

/// The source of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenPlan {
    /// A new one is created.
    Create,
    /// That of the place is used.
    Keep,
}

/// Decides whether a token is created.
///
/// GitLab never shows a token again, so one that is not in the place cannot be used. It may be in use in another cluster, so that it is
/// replaced by the user only.
pub(super) fn plan(
    active: &[ActiveToken],
    (place, state): (&str, PlaceState),
    is_new_wanted: bool,
) -> Result<TokenPlan, CliError> {
    match (active, state) {
        _ if is_new_wanted => Ok(TokenPlan::Create),
        ([], PlaceState::Empty) => Ok(TokenPlan::Create),
        ([_, ..], PlaceState::Full { .. }) => Ok(TokenPlan::Keep),
        ([_, ..], PlaceState::Empty) => Err(CliError::usage(format!(
            "the agent has an active token{}, which GitLab does not show again, and {place} has none: --new-token creates \
             another one; if the agent already runs in another cluster, requests would reach either cluster",
            names(active)
        ))),
        ([], PlaceState::Full { is_of_agent: true }) => {
            Err(CliError::usage(format!("the token in {place} has been revoked: --new-token replaces it")))
        }
        ([], PlaceState::Full { is_of_agent: false }) => Err(CliError::usage(format!(
            "{place} has a token, and this agent has none in GitLab, so that it may be that of another agent: choose another \
             place, or replace it with --new-token"
        ))),
    }
}

impl TokenOutput {
    /// Parses the value of `--token-output`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("name a file, or - for standard output".to_owned()),
            "-" => Ok(Self::Stdout),
            path => Ok(Self::File(PathBuf::from(path))),
        }
    }

    /// Returns its name for messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::File(path) => format!("the file {}", path.display()),
            Self::Stdout => "standard output".to_owned(),
        }
    }

    /// Looks for a token. A file with something else is an error.
    pub(super) fn find(&self) -> Result<PlaceState, CliError> {
        let Self::File(path) = self else { return Ok(PlaceState::Empty) };
        match files::read_text_at_most(path, 1 << 20) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(PlaceState::Empty),
            Ok(text) if is_agent_token(text.trim()) => Ok(PlaceState::Full { is_of_agent: false }),
            Ok(_) => Err(CliError::output(format!(
                "--token-output {}: the file exists, and has no token: remove it, or name another file",
                path.display()
            ))),
            Err(error) => Err(CliError::output(format!(
                "--token-output {}: {}",
                path.display(),
                files::unreadable(&error)
            ))),
        }
    }

    /// Creates the file, so that a token that GitLab shows once is not lost.
    pub(super) fn reserve(&self) -> Result<ReservedOutput, CliError> {
        let Self::File(path) = self else { return Ok(ReservedOutput::Stdout) };
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = opened.map_err(|error| {
            let what = match error.kind() {
                ErrorKind::AlreadyExists => {
                    "the file exists, and may have the token of another agent: remove it, or name another file".to_owned()
                }
                _ => error.to_string(),
            };
            CliError::output(format!("--token-output {}: {what}", path.display()))
        })?;
        Ok(ReservedOutput::File(file, path.clone()))
    }
}

impl ReservedOutput {
    /// Writes the token.
    pub(super) fn write(self, token: &SecretString) -> CommandResult {
        let line = SecretString::from(format!("{}\n", token.expose_secret()));
        match self {
            Self::Stdout => print(line.expose_secret()),
            Self::File(mut file, path) => {
                let written = file.write_all(line.expose_secret().as_bytes()).and_then(|()| file.sync_all());
                written.map_err(|error| {
                    remove(&path);
                    CliError::output(format!("--token-output {}: {error}", path.display()))
                })
            }
        }
    }

    /// Removes the file, because there is no token for it.
    pub(super) fn release(self) {
        if let Self::File(_, path) = self {
            remove(&path);
        }
    }
}

fn remove(path: &Path) {
    // The error that the user sees is the one that led here. An empty file is reported by the next run.
    let _ = fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn second_token_is_created_only_if_it_is_wanted() {
        use PlaceState::{Empty, Full};
        let active = |count: usize| -> Vec<ActiveToken> {
            (0..count)
                .map(|id| serde_json::from_str(&format!("{{\"id\":{id},\"name\":\"t\"}}")).unwrap())
                .collect()
        };
        let kept = Full { is_of_agent: true };
        let unknown = Full { is_of_agent: false };
        for (count, state, is_new_wanted, expected) in [
            (0, Empty, false, Ok(TokenPlan::Create)),
            (1, kept, false, Ok(TokenPlan::Keep)),
            (2, unknown, false, Ok(TokenPlan::Keep)),
            (1, Empty, false, Err("--new-token creates another one")),
            (0, kept, false, Err("has been revoked: --new-token replaces it")),
            (0, unknown, false, Err("may be that of another agent")),
            (1, kept, true, Ok(TokenPlan::Create)),
            (0, unknown, true, Ok(TokenPlan::Create)),
        ] {
            let planned = plan(&active(count), ("the Secret a/b", state), is_new_wanted);
            match (planned, expected) {
                (Ok(planned), Ok(expected)) => {
                    assert_eq!(planned, expected, "{count} {state:?} {is_new_wanted}")
                }
                (Err(error), Err(expected)) => assert!(error.message.contains(expected), "{}", error.message),
                (planned, _) => panic!("{count} {state:?} {is_new_wanted}: {planned:?}"),
            }
        }
    }

    #[test]
    fn file_with_the_token_is_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let output = TokenOutput::parse(path.to_str().unwrap()).unwrap();
        assert_eq!(output.find().unwrap(), PlaceState::Empty);
        output.reserve().unwrap().release();
        assert!(!path.exists(), "nothing is left");

        output.reserve().unwrap().write(&"glagent-1".into()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "glagent-1\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(output.find().unwrap(), PlaceState::Full { is_of_agent: false });
        let Err(error) = output.reserve() else { panic!("it was overwritten") };
        assert!(error.message.contains("the file exists"), "{}", error.message);

        fs::write(&path, "").unwrap();
        assert!(output.find().unwrap_err().message.contains("has no token"));
    }
}
