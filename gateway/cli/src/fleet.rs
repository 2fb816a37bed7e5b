//! The commands `kas agents list`, `kas fleet`, `kas applications` and `kas components`: all agents of a caller.

mod lists;
mod text;

use std::process::ExitCode;

use bytes::Bytes;
use clap::ValueEnum;
use http::Method;
use proto::percent;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use self::lists::{ApplicationsCommand, ComponentsCommand};
use self::text::{AgentPage, FleetReport, describe, list};
use crate::{CliError, caller::CallerOptions, print, warn};

/// The exit codes if there is no agent, and if a cluster has not answered or agents may be missing.
const NOT_FOUND: u8 = 1;
const INCOMPLETE: u8 = 2;
/// The text in place of a table without an agent.
const NO_AGENT: &str = "There is no such agent.\n";
/// The agents of one page.
const PAGE: usize = 500;

/// List the agents that a caller may use
///
/// No cluster is asked. The list has the versions that agents report, and the services that the caller may use.
#[derive(Debug, clap::Args)]
#[command(after_help = LIST_HELP)]
pub struct AgentListCommand {
    #[command(flatten)]
    options: FleetOptions,
}

/// Show the versions, nodes and capacity of all clusters of a caller
///
/// Each cluster is asked with the rights of the caller, who needs the service graph, and for the nodes the right to list them.
#[derive(Debug, clap::Args)]
#[command(after_help = help(FLEET_EXAMPLES))]
pub struct FleetCommand {
    #[command(flatten)]
    options: FleetOptions,
}

#[derive(Debug, clap::Args)]
struct FleetOptions {
    #[command(flatten)]
    caller: CallerOptions,
    #[command(flatten)]
    filter: AgentOptions,
    /// The format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Selects agents.
#[derive(Debug, clap::Args)]
struct AgentOptions {
    /// Only agents of GitLab whose project is in this group, or in a group below it
    #[arg(long, value_name = "PATH")]
    group: Option<String>,
    /// Only agents of GitLab of this project, by its full path
    #[arg(long, value_name = "PATH")]
    project: Option<String>,
    /// Only agents with this name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

const LIST_HELP: &str = "\
Example:
  export KAS_SERVER=https://kas.example.com:8154 KAS_TOKEN_FILE=token
  kas agents list --group shop

The token of a CI job is ci:<agent id>:<token>: the list has all agents of
the job. A personal access token of GitLab is for the agent that it names.

Exit codes:
  0   listed
  1   there is no such agent
  64  the command line is invalid, or kas refuses the request
  69  kas does not answer, or cannot read the records of all agents";

const FLEET_EXAMPLES: &str = "  kas fleet
  kas fleet --group shop --output json | jq .total";

/// The exit codes of each command that asks all clusters.
const EXIT_CODES: &str = "\
Exit codes:
  0   all clusters have answered
  1   there is no such agent
  2   a cluster has not answered, or agents may be missing: the output has
      the reason
  64  the command line is invalid, or kas refuses the request
  69  kas does not answer";

impl AgentListCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// kas refuses the request or does not answer.
    pub fn run(self) -> Result<ExitCode, CliError> {
        let FleetOptions { caller, filter, output } = self.options;
        let (pages, agents) = block_on(load_all(&caller, &filter))?;
        print(&match output {
            Output::Table => list(&agents),
            Output::Json => format!("{}\n", json!({"agents": pages})),
        })?;
        Ok(ExitCode::from(if pages.is_empty() { NOT_FOUND } else { 0 }))
    }
}

impl FleetCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// kas refuses the request or does not answer.
    pub fn run(self) -> Result<ExitCode, CliError> {
        show_clusters(self.options, "/agents/fleet", describe)
    }
}

/// Returns the end of the help of a command that asks all clusters.
fn help(examples: &str) -> String {
    let server = "export KAS_SERVER=https://kas.example.com:8154 KAS_TOKEN_FILE=token";
    format!("Examples:\n  {server}\n{examples}\n\n{EXIT_CODES}")
}

/// An answer about all clusters of a caller.
trait ClusterReport: DeserializeOwned {
    /// Returns the reason for which agents may be missing.
    fn missing(&self) -> Option<&str>;

    /// Returns for each cluster whether it has answered.
    fn answered(&self) -> Vec<bool>;

    fn exit_code(&self) -> u8 {
        let answered = self.answered();
        if self.missing().is_some() || answered.contains(&false) {
            INCOMPLETE
        } else if answered.is_empty() {
            NOT_FOUND
        } else {
            0
        }
    }
}

impl ClusterReport for FleetReport {
    fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    fn answered(&self) -> Vec<bool> {
        self.clusters.iter().map(|cluster| cluster.missing.is_none()).collect()
    }
}

/// Asks for an answer about all clusters, and shows it.
fn show_clusters<R: ClusterReport>(
    options: FleetOptions,
    path: &str,
    table: fn(&R) -> String,
) -> Result<ExitCode, CliError> {
    let FleetOptions { caller, filter, output } = options;
    let path = format!("{path}?{}", filter.query());
    let body = block_on(caller.send(Method::GET, path.trim_end_matches('?')))?;
    let report: R = parse(&body)?;
    warn_of(report.missing());
    print(&match output {
        Output::Table => text_of(&report, table),
        Output::Json => format!("{}\n", String::from_utf8_lossy(&body).trim_end()),
    })?;
    Ok(ExitCode::from(report.exit_code()))
}

/// Returns the table of an answer, or that there is no agent. If agents may be missing, kas does not know that, and the warning has the reason.
fn text_of<R: ClusterReport>(report: &R, table: fn(&R) -> String) -> String {
    let has_no_agent = report.answered().is_empty() && report.missing().is_none();
    if has_no_agent { NO_AGENT.to_owned() } else { table(report) }
}

impl AgentOptions {
    fn query(&self) -> String {
        let given = [("group", &self.group), ("project", &self.project), ("name", &self.name)];
        let given = given.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let pairs = given.map(|(key, value)| format!("{key}={}", percent::encode(value)));
        pairs.collect::<Vec<_>>().join("&")
    }
}

/// Returns the agents of all pages, as kas has sent them and as the table shows them.
async fn load_all(
    caller: &CallerOptions,
    filter: &AgentOptions,
) -> Result<(Vec<Value>, Vec<text::AgentLine>), CliError> {
    let (mut values, mut lines, mut after) = (Vec::new(), Vec::new(), String::new());
    loop {
        let path = format!("/agents?limit={PAGE}&continue={}&{}", percent::encode(&after), filter.query());
        let body = caller.send(Method::GET, path.trim_end_matches('&')).await?;
        let mut page: Value = parse(&body)?;
        if let Some(agents) = page["agents"].as_array_mut() {
            values.append(agents);
        }
        let AgentPage { agents, missing, next } = parse(&body)?;
        check_records(values.is_empty(), missing.as_deref())?;
        warn_of(missing.as_deref());
        lines.extend(agents);
        match next {
            Some(next) if next != after => after = next,
            Some(_) | None => return Ok((values, lines)),
        }
    }
}

/// Refuses a list without an agent if some may be missing. A kas before 0.2 answers so while it cannot read its records, and any
/// kas if the list has reached a limit.
fn check_records(is_empty: bool, missing: Option<&str>) -> Result<(), CliError> {
    match missing {
        Some(missing) if is_empty => Err(CliError::unavailable(format!(
            "kas lists no agent, and agents may be missing: {missing}; if kas cannot read its records, try again, and if that does not \
             help, see /readiness of kas"
        ))),
        Some(_) | None => Ok(()),
    }
}

fn warn_of(missing: Option<&str>) {
    if let Some(missing) = missing {
        warn(&format!("agents may be missing: {missing}"));
    }
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, CliError> {
    serde_json::from_slice(body)
        .map_err(|error| CliError::unavailable(format!("the server is not a kas of this version: {error}")))
}

fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::unavailable(format!("no runtime: {error}")))?;
    runtime.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_without_an_agent_is_no_answer_while_records_cannot_be_read() {
        let missing = Some("Redis was not reached yet");
        let error = check_records(true, missing).unwrap_err();
        assert_eq!(error.code, CliError::UNAVAILABLE);
        assert!(error.message.contains("Redis was not reached yet"), "{}", error.message);
        assert!(check_records(false, missing).is_ok() && check_records(true, None).is_ok());
    }

    #[test]
    fn filter_is_encoded() {
        let text = |text: &str| Some(text.to_owned());
        let filter = AgentOptions { group: text("shop/eu"), project: None, name: text("a&b") };
        assert_eq!(filter.query(), "group=shop%2Feu&name=a%26b");
        assert_eq!(AgentOptions { group: None, project: None, name: None }.query(), "");
    }
}
