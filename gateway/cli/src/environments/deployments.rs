//! `kas environments list` and `kas environments deployed`: the environments of all clusters with their last deployments, and where a commit
//! is deployed, as the operator of kas.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::SystemTime,
};

use bytes::Bytes;
use clap::{ValueHint, builder::NonEmptyStringValueParser};
use http::Method;
use proto::percent;
use serde::{Deserialize, de::DeserializeOwned};
use settings::rfc3339;

use super::Output;
use crate::{
    CliError,
    caller::Server,
    table::{Table, age, printable},
    warn,
};

/// The exit codes if no selected environment has the commit, and if kas cannot know it.
const NOT_DEPLOYED: u8 = 1;
const NOT_KNOWN: u8 = 2;
/// The digits of a commit that a table shows.
const SHORT: usize = 8;

/// The kas of an operator.
#[derive(Debug, clap::Args)]
struct OperatorOptions {
    /// The configuration file of kas
    #[arg(long, visible_alias = "configuration-file", env = "KAS_CONFIG", value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: PathBuf,
    /// The format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// List the environments of all agents, with their last deployments
#[derive(Debug, clap::Args)]
#[command(after_help = LIST_HELP)]
pub(super) struct EnvironmentTable {
    #[command(flatten)]
    operator: OperatorOptions,
    /// Only those of this project, by its full path
    #[arg(long, value_name = "PATH")]
    project: Option<String>,
    /// Only those with this name, or whose name fits this pattern, like production/us-*
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// Only those of this tier, such as production
    #[arg(long, value_name = "TIER")]
    tier: Option<String>,
    /// Only those of this group, of groups below it, and of projects below it
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Only those with a place at this agent, as the environment names it
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// Only those with a place in this namespace
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Only those with a place with these labels, as for kubectl --selector
    #[arg(long, value_name = "SELECTOR")]
    label: Option<String>,
}

/// Show where a commit is deployed: is it in production?
///
/// It looks for the commit of a deployment itself, and not for one that contains it.
#[derive(Debug, clap::Args)]
#[command(after_help = DEPLOYED_HELP)]
pub(super) struct Deployed {
    #[command(flatten)]
    operator: OperatorOptions,
    /// The commit, or 7 or more of its first digits
    // An empty value, as of a variable that is not set, would select more.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    commit: String,
    /// Only environments whose slug is this one, or fits this pattern, like prod*
    #[arg(long, value_name = "PATTERN", value_parser = NonEmptyStringValueParser::new())]
    environment: Option<String>,
    /// Only environments of this tier, such as production
    #[arg(long, value_name = "TIER", value_parser = NonEmptyStringValueParser::new())]
    tier: Option<String>,
    /// Only those of this project, by its full path
    #[arg(long, value_name = "PATH", value_parser = NonEmptyStringValueParser::new())]
    project: Option<String>,
    /// Only with this agent, by its id
    #[arg(long, value_name = "ID")]
    agent: Option<u64>,
}

const LIST_HELP: &str = "\
Examples:
  kas environments list --config kas.yaml --tier production
  kas environments list --config kas.yaml --name 'production/us-*'

Columns:
  COMMIT, REF, BY, AGO  the last successful deployment, as far as kas knows
  LAST                  the status of the last deployment: running, success,
                        failed, canceled or unknown

Exit codes:
  0   listed
  64  the command line is invalid, or kas refuses the request
  69  kas does not answer";

const DEPLOYED_HELP: &str = "\
Examples:
  kas environments deployed 3f1c9a7 --config kas.yaml --tier production
  kas environments deployed \"$CI_COMMIT_SHA\" --config kas.yaml \\
    --project shop/web --environment 'prod*'

Exit codes:
  0   a selected environment has the commit
  1   none has it, as far as kas has recorded: the newest 1000 deployments
  2   kas does not know: the result of its deployment, or of a later one,
      or the commit of the last one is unknown
  64  the command line is invalid, or kas refuses the request
  69  kas does not answer";

#[derive(Deserialize)]
struct EnvironmentPage {
    environments: Vec<EnvironmentLine>,
    #[serde(default)]
    missing: Vec<MissingLine>,
}

#[derive(Deserialize)]
struct MissingLine {
    reason: String,
}

#[derive(Deserialize)]
struct EnvironmentLine {
    project: String,
    slug: String,
    tier: String,
    agents: Vec<PlaceLine>,
    deployments: Option<LastLines>,
}

#[derive(Deserialize)]
struct PlaceLine {
    agent: String,
    namespace: String,
}

#[derive(Deserialize)]
struct LastLines {
    last: Option<LastLine>,
    last_successful: Option<LastLine>,
    missing: Option<String>,
}

#[derive(Deserialize)]
struct LastLine {
    status: String,
    commit: Option<String>,
    #[serde(rename = "ref")]
    reference: Option<String>,
    username: Option<String>,
    finished: Option<Time>,
    started: Option<Time>,
}

#[derive(Deserialize)]
struct DeploymentPage {
    missing: Option<String>,
    /// The deployments that may be selected: kas does not know their commit or their project.
    unclear: usize,
    deployments: Vec<DeploymentLine>,
}

#[derive(Deserialize)]
struct DeploymentLine {
    time: Time,
    agent: u64,
    project: Option<String>,
    project_id: u64,
    environment: String,
    job: u64,
    commit: Option<String>,
    username: Option<String>,
    status: String,
    current: Option<bool>,
}

#[derive(Clone, Copy, Deserialize)]
struct Time(#[serde(with = "rfc3339")] SystemTime);

impl EnvironmentTable {
    /// Returns the text to print, and the exit code. `address_of` returns the observability listener of a configuration.
    pub(super) async fn run(
        self,
        address_of: impl FnOnce(&Path) -> Result<SocketAddr, CliError>,
    ) -> Result<(String, u8), CliError> {
        let Self { operator, project, name, tier, group, agent, namespace, label } = self;
        let filter = [
            ("project", project),
            ("name", name),
            ("tier", tier),
            ("group", group),
            ("agent", agent),
            ("namespace", namespace),
            ("label", label),
        ];
        let body = operator.get("/environments?deployments=true", filter, address_of).await?;
        let page: EnvironmentPage = parse(&body)?;
        let lasts = page.environments.iter().filter_map(|line| line.deployments.as_ref());
        let mut missing: Vec<&str> = lasts.filter_map(|last| last.missing.as_deref()).collect();
        missing.dedup();
        missing.iter().for_each(|what| warn(&format!("deployments are missing: {what}")));
        page.missing.iter().for_each(|part| warn(&format!("environments are missing: {}", part.reason)));
        Ok((operator.output.text(&body, || list(&page.environments, SystemTime::now())), 0))
    }
}

impl Deployed {
    /// Returns the text to print, and the exit code. `address_of` returns the observability listener of a configuration.
    pub(super) async fn run(
        self,
        address_of: impl FnOnce(&Path) -> Result<SocketAddr, CliError>,
    ) -> Result<(String, u8), CliError> {
        let Self { operator, commit, environment, tier, project, agent } = self;
        let filter = [
            ("commit", Some(commit)),
            ("environment", environment),
            ("tier", tier),
            ("project", project),
            ("agent", agent.map(|agent| agent.to_string())),
        ];
        let body = operator.get("/deployments?limit=500", filter, address_of).await?;
        let page: DeploymentPage = parse(&body)?;
        if let Some(missing) = page.missing {
            return Err(CliError::unavailable(format!("the deployments are not known: {missing}")));
        }
        let code = exit_code(&page.deployments, page.unclear);
        Ok((operator.output.text(&body, || describe(&page.deployments, SystemTime::now())), code))
    }
}

impl OperatorOptions {
    /// Requests a list of the kas that runs with the configuration.
    async fn get<const N: usize>(
        &self,
        path: &str,
        filter: [(&str, Option<String>); N],
        address_of: impl FnOnce(&Path) -> Result<SocketAddr, CliError>,
    ) -> Result<Bytes, CliError> {
        let given = filter.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let filter: String =
            given.map(|(key, value)| format!("&{key}={}", percent::encode(&value))).collect();
        let server = Server::Plain(address_of(&self.config)?);
        server.send(Method::GET, &format!("{path}{filter}")).await
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, CliError> {
    serde_json::from_slice(body)
        .map_err(|error| CliError::unavailable(format!("the server is not a kas of this version: {error}")))
}

/// Returns 0 if an environment has the commit of these deployments. Others may have it, too, whose commit is not known.
fn exit_code(deployments: &[DeploymentLine], unclear: usize) -> u8 {
    let any = |wanted| deployments.iter().any(|line| line.current == wanted);
    match (any(Some(true)), any(None)) {
        (true, _) => 0,
        (false, true) => NOT_KNOWN,
        (false, false) if unclear > 0 => NOT_KNOWN,
        (false, false) => NOT_DEPLOYED,
    }
}

fn list(environments: &[EnvironmentLine], now: SystemTime) -> String {
    if environments.is_empty() {
        return "There are no such environments.\n".to_owned();
    }
    let mut table =
        Table::new(&["PROJECT", "ENVIRONMENT", "TIER", "COMMIT", "REF", "BY", "AGO", "LAST", "PLACES"]);
    for EnvironmentLine { project, slug, tier, agents, deployments } in environments {
        let last = deployments.as_ref().and_then(|last| last.last.as_ref());
        let successful = deployments.as_ref().and_then(|last| last.last_successful.as_ref());
        let of = |part: fn(&LastLine) -> &Option<String>| {
            successful.and_then(|last| part(last).clone()).unwrap_or_default()
        };
        let time = successful.and_then(|last| last.finished.or(last.started));
        let places = agents.iter().map(|place| format!("{}/{}", place.agent, place.namespace));
        table.row([
            project.clone(),
            slug.clone(),
            tier.clone(),
            short(&of(|last| &last.commit)),
            of(|last| &last.reference),
            of(|last| &last.username),
            time.map(|time| ago(time, now)).unwrap_or_default(),
            last.map(|last| last.status.clone()).unwrap_or_default(),
            places.collect::<Vec<_>>().join(","),
        ]);
    }
    table.to_string()
}

fn describe(deployments: &[DeploymentLine], now: SystemTime) -> String {
    if deployments.is_empty() {
        return "kas knows no such deployment of this commit.\n".to_owned();
    }
    let mut table =
        Table::new(&["PROJECT", "ENVIRONMENT", "AGENT", "COMMIT", "STATUS", "CURRENT", "JOB", "BY", "AGO"]);
    for line in deployments {
        let DeploymentLine { time, agent, project, project_id, environment, job, .. } = line;
        let current = match line.current {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        table.row([
            project.clone().unwrap_or_else(|| project_id.to_string()),
            environment.clone(),
            agent.to_string(),
            short(line.commit.as_deref().unwrap_or_default()),
            line.status.clone(),
            current.to_owned(),
            job.to_string(),
            line.username.clone().unwrap_or_default(),
            ago(*time, now),
        ]);
    }
    table.to_string()
}

fn short(commit: &str) -> String {
    printable(&commit.chars().take(SHORT).collect::<String>())
}

fn ago(Time(time): Time, now: SystemTime) -> String {
    age(now.duration_since(time).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(job: u64, current: Value) -> Value {
        json!({
            "time": "2026-11-20T12:00:00Z", "agent": 1, "namespace": null, "project_id": 7, "project": "shop/web",
            "environment": "live", "tier": "production", "job": job, "commit": "3f1c9a7e5d2b4c6a8e0f1d3b5a7c9e1f2a4b6c8d",
            "username": "alice", "status": "success", "ref": "main", "current": current,
        })
    }

    fn lines(lines: Vec<Value>) -> Vec<DeploymentLine> {
        serde_json::from_value(lines.into()).unwrap()
    }

    #[test]
    fn exit_code_says_whether_the_commit_is_deployed() {
        let code = |current: &[Value]| {
            exit_code(&lines(current.iter().map(|current| deployment(1, current.clone())).collect()), 0)
        };
        assert_eq!(code(&[json!(false), json!(null), json!(true)]), 0);
        assert_eq!(code(&[json!(false), json!(null)]), NOT_KNOWN);
        assert_eq!(code(&[json!(false)]), NOT_DEPLOYED);
        assert_eq!(code(&[]), NOT_DEPLOYED);
    }

    #[test]
    fn deployments_of_a_commit_are_a_table() {
        let now = rfc3339::parse("2026-11-20T15:02:00Z").unwrap();
        let mut hidden = deployment(2, json!(null));
        hidden["project"] = Value::Null;
        hidden["username"] = json!("\u{1b}[2J");
        let text = describe(&lines(vec![deployment(1, json!(true)), hidden]), now);
        let text: Vec<_> = text.lines().collect();
        assert!(text[1].starts_with("shop/web  live         1      3f1c9a7e  success  yes"), "{text:?}");
        assert!(text[2].starts_with("7         live         1      3f1c9a7e  success  unknown"), "{text:?}");
        assert!(text[1].ends_with("1    alice  3h2m") && !text[2].contains('\u{1b}'), "{text:?}");
        assert!(describe(&[], now).contains("no such deployment"));
    }

    #[test]
    fn environments_are_a_table_with_the_last_success() {
        let now = rfc3339::parse("2026-11-20T15:02:00Z").unwrap();
        let mut last = deployment(4, Value::Null);
        last["finished"] = json!("2026-11-20T12:01:00Z");
        let failed = json!({"status": "failed"});
        let places = json!([{"agent": "eu", "namespace": "web"}, {"agent": "us", "namespace": "web"}]);
        let environments: Vec<EnvironmentLine> = serde_json::from_value(json!([
            {"project": "shop/web", "slug": "live", "tier": "production", "agents": places,
             "deployments": {"source": "jobs", "last": failed, "last_successful": last, "missing": null}},
            {"project": "shop/web", "slug": "dev", "tier": "other", "agents": []},
        ]))
        .unwrap();
        let text = list(&environments, now);
        let words: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let live = "shop/web live production 3f1c9a7e main alice 3h1m failed eu/web,us/web";
        assert_eq!(words[1].join(" "), live);
        assert_eq!(words[2].join(" "), "shop/web dev other - - - - - -");
        assert!(list(&[], now).contains("no such environments"));
    }
}
