//! The commands `kas tree`, `kas groups` and `kas health`: what runs in the cluster of an agent.

mod health;

use std::{
    fmt::Write as _,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use clap::ValueEnum;
use http::Method;
use proto::{
    ServiceName, agent_path,
    graph::{Branch, GROUPS_PATH, Group, GroupList, HealthState, Ready, TREE_PATH, Tree},
    percent,
};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

pub use self::health::{HealthCommand, HealthPlace};

use crate::{
    CliError,
    caller::CallerOptions,
    print,
    retry::Retry,
    table::{Table, age, printable},
};

/// The exit code if nothing was found.
const NOT_FOUND: u8 = 1;
/// The time between two looks.
const WATCH_PERIOD: Duration = Duration::from_secs(2);

/// Show the objects of a cluster with the objects that they own
///
/// The caller needs the service graph, and sees the objects that the API server lets the caller list.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  export KAS_SERVER=https://kas.example.com:8154 KAS_TOKEN_FILE=token
  kas tree production --namespace shop
  kas tree production --namespace shop deployment/web

Exit codes:
  0   something was found
  1   nothing was found
  64  the command line is invalid, or kas refuses the request
  69  kas or the agent does not answer")]
pub struct TreeCommand {
    #[command(flatten)]
    place: GraphTarget,
    /// One object, such as deployment/web [default: all objects]
    #[arg(value_name = "KIND/NAME")]
    object: Option<String>,
    /// Also show old ReplicaSets, completed Jobs, and what has no health, such as ConfigMaps
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    view: View,
}

/// Show what belongs together in a cluster, and how it is
///
/// Groups are found by the labels and annotations of GitLab, GitOps, Helm, Flux and Argo CD, and by namespaces.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  kas groups production

Exit codes:
  0   something was found
  1   nothing was found
  64  the command line is invalid, or kas refuses the request
  69  kas or the agent does not answer")]
pub struct GroupsCommand {
    #[command(flatten)]
    place: GraphTarget,
    #[command(flatten)]
    view: View,
}

/// The agent, and the objects of it that the command is about.
#[derive(Debug, clap::Args)]
struct GraphTarget {
    #[command(flatten)]
    caller: CallerOptions,
    /// The agent, by its name or id
    #[arg(value_name = "AGENT")]
    agent: String,
    /// Only this namespace; may be repeated
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// Only objects with these labels, as for kubectl --selector
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    label: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct View {
    /// The format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Print it again whenever it changes, until Ctrl-C, also while kas or the agent restarts
    #[arg(long)]
    watch: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

impl TreeCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// kas or the agent refuses the request or does not answer.
    pub fn run(self) -> Result<ExitCode, CliError> {
        let mut parameters = self.place.parameters();
        if let Some(object) = &self.object {
            let (kind, name) = object.split_once('/').ok_or_else(|| {
                CliError::usage(format!("{object}: write KIND/NAME, such as deployment/web"))
            })?;
            parameters.extend([("kind", kind.to_owned()), ("name", name.to_owned())]);
        }
        let all = self.all || self.object.is_some();
        let text = move |body: &[u8]| Ok(show_tree(&parse(body)?, all, SystemTime::now()));
        let body = block_on(self.view.run(|| self.place.get(TREE_PATH, &parameters), text))?;
        let tree: Tree = parse(&body)?;
        Ok(ExitCode::from(if tree.roots.is_empty() { NOT_FOUND } else { 0 }))
    }
}

impl GroupsCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// kas or the agent refuses the request or does not answer.
    pub fn run(self) -> Result<ExitCode, CliError> {
        let parameters = self.place.parameters();
        let text = |body: &[u8]| Ok(show_groups(&parse(body)?));
        let body = block_on(self.view.run(|| self.place.get(GROUPS_PATH, &parameters), text))?;
        let list: GroupList = parse(&body)?;
        Ok(ExitCode::from(if list.groups.is_empty() { NOT_FOUND } else { 0 }))
    }
}

impl GraphTarget {
    fn parameters(&self) -> Vec<(&'static str, String)> {
        let namespaces = self.namespace.iter().map(|name| ("namespace", name.clone()));
        namespaces.chain(self.label.clone().map(|label| ("label", label))).collect()
    }

    async fn get(&self, path: &str, parameters: &[(&str, String)]) -> Result<Bytes, CliError> {
        get(&self.caller, &self.agent, path, parameters).await
    }
}

/// Sends a request for the graph of an agent.
async fn get(
    caller: &CallerOptions,
    agent: &str,
    path: &str,
    parameters: &[(&str, String)],
) -> Result<Bytes, CliError> {
    let pairs: Vec<String> =
        parameters.iter().map(|(key, value)| format!("{key}={}", percent::encode(value))).collect();
    let path = agent_path(agent, ServiceName::GRAPH, &format!("{path}?{}", pairs.join("&")));
    caller.send(Method::GET, path.trim_end_matches('?')).await
}

impl View {
    /// Prints a response, and returns it. With `--watch` it prints each one that differs from the one before, and ends only if the caller
    /// is refused.
    async fn run(
        self,
        get: impl AsyncFn() -> Result<Bytes, CliError>,
        text: impl Fn(&[u8]) -> Result<String, CliError>,
    ) -> Result<Bytes, CliError> {
        let mut shown = String::new();
        let mut retry = Retry::default();
        loop {
            let body = retry.run(&get).await?;
            let next = match self.output {
                Output::Json => with_newline(&body),
                Output::Text => text(&body)?,
            };
            if next != shown {
                print(&next)?;
            }
            if !self.watch {
                return Ok(body);
            }
            retry.keep_on();
            shown = next;
            sleep(WATCH_PERIOD).await;
        }
    }
}

fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::unavailable(format!("no runtime: {error}")))?;
    runtime.block_on(work)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, CliError> {
    serde_json::from_slice(body)
        .map_err(|error| CliError::unavailable(format!("the response of the agent is invalid: {error}")))
}

fn with_newline(body: &[u8]) -> String {
    format!("{}\n", String::from_utf8_lossy(body).trim_end())
}

/// Shows a tree. All texts come from the agent.
fn show_tree(tree: &Tree, all: bool, now: SystemTime) -> String {
    let mut lines = Vec::new();
    let roots: Vec<&Branch> = tree.roots.iter().filter(|branch| all || is_shown(branch)).collect();
    for branch in &roots {
        add_branch(branch, String::new(), "", all, now, &mut lines);
    }
    if lines.is_empty() {
        let what = match tree.roots.len() {
            0 => "Nothing was found.",
            _ => "All objects are old, completed, or have no health: --all shows them.",
        };
        return format!("{what}\n{}", reasons(&tree.partial));
    }
    let mut table = Table::new(&["NAMESPACE", "OBJECT", "STATUS", "HEALTH", "AGE"]);
    let mut messages = String::new();
    for line in lines {
        if !line.message.is_empty() {
            let _ = writeln!(messages, "{}: {}", line.name, printable(&line.message));
        }
        table.row_for_people([line.namespace, line.object, line.status, line.health, line.age]);
    }
    let mut text = table.to_string();
    if !messages.is_empty() {
        let _ = write!(text, "\n{messages}");
    }
    if tree.omitted > 0 {
        let _ =
            writeln!(text, "\n{} more objects were left out: name a namespace or an object", tree.omitted);
    }
    text + &reasons(&tree.partial)
}

/// One line of a tree.
struct Line {
    namespace: String,
    object: String,
    name: String,
    status: String,
    health: String,
    message: String,
    age: String,
}

fn add_branch(
    branch: &Branch,
    indent: String,
    connector: &str,
    all: bool,
    now: SystemTime,
    lines: &mut Vec<Line>,
) {
    let node = &branch.node;
    let created = humantime::parse_rfc3339(&node.created).ok();
    let name = format!("{}/{}", node.kind, node.name);
    let ready = node.ready.map(|Ready { ready, desired }| format!("{ready}/{desired}"));
    let status = match ready {
        Some(ready) if ready != node.status => format!("{} {ready}", node.status).trim().to_owned(),
        _ => node.status.clone(),
    };
    lines.push(Line {
        namespace: node.namespace.clone(),
        object: format!("{indent}{connector}{name}"),
        name,
        status,
        health: node.health.as_str().to_owned(),
        message: node.message.clone(),
        age: created.map(|time| age(now.duration_since(time).unwrap_or_default())).unwrap_or_default(),
    });
    let children: Vec<&Branch> = branch.children.iter().filter(|branch| all || is_shown(branch)).collect();
    let below = match connector {
        "" => indent,
        "└─" => format!("{indent}  "),
        _ => format!("{indent}│ "),
    };
    for (place, child) in children.iter().enumerate() {
        let connector = if place + 1 == children.len() { "└─" } else { "├─" };
        add_branch(child, below.clone(), connector, all, now, lines);
    }
}

/// Returns whether people want to see an object at first: it is not healthy, or it runs or routes something.
fn is_shown(branch: &Branch) -> bool {
    const QUIET: [&str; 13] = [
        "ConfigMap",
        "EndpointSlice",
        "ServiceAccount",
        "RoleBinding",
        "ClusterRoleBinding",
        "Role",
        "ClusterRole",
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "Namespace",
        "CustomResourceDefinition",
        "APIService",
        "StorageClass",
    ];
    let node = &branch.node;
    if node.health > HealthState::Suspended {
        return true;
    }
    let is_over = match &*node.kind {
        "ReplicaSet" => node.ready.is_some_and(|ready| ready.desired == 0),
        "Job" => node.status == "Complete",
        kind => QUIET.contains(&kind),
    };
    !is_over || branch.children.iter().any(|child| child.node.health > HealthState::Suspended)
}

fn show_groups(list: &GroupList) -> String {
    if list.groups.is_empty() {
        return format!("The cluster has no groups.\n{}", reasons(&list.partial));
    }
    let mut table = Table::new(&["GROUP", "HEALTH", "OBJECTS", "UNHEALTHY", "NAMESPACES"]);
    for Group { id, namespaces, health, .. } in &list.groups {
        let total: u64 = health.counts.values().sum();
        let bad = health.counts.iter().filter(|(state, _)| **state > HealthState::Suspended);
        let bad: u64 = bad.map(|(_, count)| count).sum();
        table.row([
            id.clone(),
            health.health.as_str().to_owned(),
            total.to_string(),
            bad.to_string(),
            namespaces.join(","),
        ]);
    }
    table.to_string() + &reasons(&list.partial)
}

/// The reasons why something may be missing, one in each line.
fn reasons(partial: &[String]) -> String {
    partial.iter().fold(String::new(), |text, reason| format!("{text}Note: {}\n", printable(reason)))
}

#[cfg(test)]
mod tests;
