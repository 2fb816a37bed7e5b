//! The command `kas environments`: the environments with their deployments, and the objects that agentk has made for an environment.

mod deployments;

use std::{net::SocketAddr, path::Path, process::ExitCode};

use bytes::Bytes;
use clap::{Subcommand, ValueEnum};
use http::Method;
use proto::{
    ServiceName, agent_path,
    provision::{Deletion, EnvironmentKey, EnvironmentObjects},
};
use serde::de::DeserializeOwned;

use self::deployments::{Deployed, EnvironmentTable};
use crate::{CliError, caller::CallerOptions, print, table::printable};

/// The exit code if an object was not deleted.
const KEPT: u8 = 1;

/// Show environments with their deployments and objects
///
/// `list` and `deployed` ask the kas that runs with a configuration, at its observability.listen.address, about all agents. `show` and
/// `delete` are about the objects that are made from a template before the first request of a CI job. Their caller needs the service
/// provision and the identity of agentk; a job may use it for its own environment.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct EnvironmentsCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(EnvironmentTable),
    Deployed(Deployed),
    /// List the objects of an environment
    Show(EnvironmentOptions),
    /// Delete the objects of an environment that has stopped, except those that others use
    Delete(EnvironmentOptions),
}

#[derive(Debug, clap::Args)]
struct EnvironmentOptions {
    #[command(flatten)]
    caller: CallerOptions,
    /// The agent, by its name or id
    #[arg(long, value_name = "AGENT")]
    agent: String,
    /// The id of the project in GitLab
    #[arg(long, value_name = "ID")]
    project: u64,
    /// The slug of the environment
    environment: String,
    /// The format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

const EXAMPLES: &str = "\
Examples:
  kas environments list --config kas.yaml
  kas environments deployed 3f1c9a7 --config kas.yaml --tier production
  export KAS_SERVER=https://kas.example.com:8154 KAS_TOKEN_FILE=token
  kas environments show --agent production --project 30 review-1
  kas environments delete --agent production --project 30 review-1

Exit codes:
  0   done
  1   delete: an object stays, and the output has the reason;
      deployed: no selected environment has the commit
  2   deployed: kas does not know
  64  the command line is invalid, or kas refuses the request
  69  kas or the agent does not answer";

impl EnvironmentsCommand {
    /// Runs the command. `address_of` returns the address of the observability listener of a kas with this configuration.
    ///
    /// # Errors
    ///
    /// kas or the agent refuses the request or does not answer.
    pub fn run(
        self,
        address_of: impl FnOnce(&Path) -> Result<SocketAddr, CliError>,
    ) -> Result<ExitCode, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| CliError::unavailable(format!("no runtime: {error}")))?;
        let (text, code) = runtime.block_on(self.action.run(address_of))?;
        print(&text)?;
        Ok(ExitCode::from(code))
    }
}

impl Action {
    /// Returns the text to print, and the exit code.
    async fn run(
        self,
        address_of: impl FnOnce(&Path) -> Result<SocketAddr, CliError>,
    ) -> Result<(String, u8), CliError> {
        match self {
            Self::List(table) => table.run(address_of).await,
            Self::Deployed(deployed) => deployed.run(address_of).await,
            Self::Show(options) => {
                let body = options.send(Method::GET).await?;
                let listed: EnvironmentObjects = parse(&body)?;
                Ok((options.output.text(&body, || list(&listed)), 0))
            }
            Self::Delete(options) => {
                let body = options.send(Method::DELETE).await?;
                let deletion: Deletion = parse(&body)?;
                let code = if deletion.kept.is_empty() { 0 } else { KEPT };
                Ok((options.output.text(&body, || describe(&deletion)), code))
            }
        }
    }
}

impl EnvironmentOptions {
    async fn send(&self, method: Method) -> Result<Bytes, CliError> {
        let key = EnvironmentKey::new(self.project, &self.environment);
        let key = key.map_err(|error| CliError::usage(error.to_string()))?;
        self.caller.send(method, &agent_path(&self.agent, ServiceName::PROVISION, &key.path())).await
    }
}

impl Output {
    fn text(self, body: &[u8], text: impl FnOnce() -> String) -> String {
        match self {
            Self::Text => text(),
            Self::Json => format!("{}\n", String::from_utf8_lossy(body).trim_end()),
        }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, CliError> {
    serde_json::from_slice(body)
        .map_err(|error| CliError::unavailable(format!("agentk sent an unexpected answer: {error}")))
}

fn list(listed: &EnvironmentObjects) -> String {
    if listed.objects.is_empty() {
        "The environment has no objects.\n".to_owned()
    } else {
        listed.objects.iter().map(|id| format!("{}\n", printable(&id.to_string()))).collect()
    }
}

fn describe(deletion: &Deletion) -> String {
    if deletion.deleted.is_empty() && deletion.kept.is_empty() {
        return "The environment has no objects.\n".to_owned();
    }
    let deleted = deletion.deleted.iter().map(|id| format!("deleted  {}\n", printable(&id.to_string())));
    let kept = deletion.kept.iter().map(|kept| {
        let (id, reason) = (kept.id.to_string(), &kept.reason);
        format!("kept     {}: {}\n", printable(&id), printable(reason))
    });
    deleted.chain(kept).collect()
}

#[cfg(test)]
mod tests {
    use proto::{gitops::ObjectId, provision::KeptObject};

    use super::*;

    #[test]
    fn deletion_names_what_stays_with_the_reason() {
        let namespace = ObjectId { kind: "Namespace".into(), name: "r1".into(), ..ObjectId::default() };
        let account = ObjectId { kind: "ServiceAccount".into(), namespace: "r1".into(), ..namespace.clone() };
        let reason = "it contains Deployment.apps r1/web\u{1b}[2J".to_owned();
        let deletion = Deletion { deleted: vec![account], kept: vec![KeptObject { id: namespace, reason }] };
        let text = describe(&deletion);
        assert!(
            text.starts_with("deleted  ServiceAccount r1/r1\nkept     Namespace r1: it contains"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "the agent is not trusted");
        assert_eq!(describe(&Deletion::default()), "The environment has no objects.\n");
    }
}
