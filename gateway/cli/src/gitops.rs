//! The command `kas gitops`: the state of manifests from Git, and commands about them.

mod diff;
mod text;

use std::{
    process::ExitCode,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use clap::{Subcommand, ValueEnum};
use http::Method;
use proto::{
    ServiceName, agent_path,
    gitops::{PROJECTS_PATH, ProjectState, ProjectStatus},
    percent,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use self::{
    diff::DiffOptions,
    text::{describe, describe_recovery, table},
};
use crate::{CliError, caller::CallerOptions, print, retry::Retry, table::printable};

/// The time between two requests for a status.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// The most requests for the status of a project until agentk has answered a command about all of its objects.
const MAX_POLLS: u32 = 30;
/// The requests for the status of a project after which its recovery plan counts as new, if agentk does not say so.
const POLLS_OF_OLD_PLAN: u32 = 5;

/// Show and control the manifests from Git that an agent applies
///
/// The projects are those of gitops.manifest_projects in the configuration of the agent. The caller needs the service gitops.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct GitopsCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the projects of an agent
    List(ListOptions),
    /// Show one project: its state, what it waits for, its errors and its last syncs
    Show(ShowOptions),
    /// Show what a sync would change, without a change
    Diff(DiffOptions),
    /// Look at the repository and at the cluster at once
    Sync(ProjectOptions),
    /// Stop the syncs of a project; its objects stay
    Suspend(ProjectOptions),
    /// Start the syncs of a project again
    Resume(ProjectOptions),
    /// Let a commit that is held delete its objects
    Approve(ApproveOptions),
    /// Delete the objects of a project that left the configuration, after an approval
    Prune(ProjectOptions),
    /// Rebuild the inventory of a project from its objects in the cluster, after an approval
    ///
    /// For a project whose state is inventory-lost. Without --code nothing is written: agentk looks for the objects of the project, and
    /// the command prints those that would be its inventory again, with their code. With --code it prints the state of the project after
    /// that; one that is suspended then goes on with kas gitops resume.
    Recover(RecoverOptions),
}

#[derive(Debug, clap::Args)]
struct ListOptions {
    #[command(flatten)]
    agent: AgentOptions,
    #[command(flatten)]
    view: ViewOptions,
}

#[derive(Debug, clap::Args)]
struct ShowOptions {
    #[command(flatten)]
    project: ProjectOptions,
    #[command(flatten)]
    view: ViewOptions,
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct ViewOptions {
    /// The format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Print it again whenever it changes, until Ctrl-C, also while kas or the agent restarts
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, clap::Args)]
struct ApproveOptions {
    #[command(flatten)]
    project: ProjectOptions,
    /// The code that `show` prints, which is for exactly the deletions that it shows
    #[arg(long)]
    code: String,
}

#[derive(Debug, clap::Args)]
struct RecoverOptions {
    #[command(flatten)]
    project: ProjectOptions,
    /// The code that the command prints without it, which is for exactly the inventory that it shows
    #[arg(long)]
    code: Option<String>,
}

#[derive(Debug, clap::Args)]
struct ProjectOptions {
    #[command(flatten)]
    agent: AgentOptions,
    /// The id of the project
    project: String,
}

#[derive(Debug, clap::Args)]
struct AgentOptions {
    #[command(flatten)]
    caller: CallerOptions,
    /// The agent, by its name or id
    #[arg(long, value_name = "AGENT")]
    agent: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

#[derive(Deserialize)]
struct Projects {
    projects: Vec<ProjectStatus>,
}

const EXAMPLES: &str = "\
Examples:
  export KAS_SERVER=https://kas.example.com:8154 KAS_TOKEN_FILE=token
  kas gitops list --agent production
  kas gitops show --agent production group/shop
  kas gitops show --agent production group/shop --watch
  kas gitops approve --agent production --code 9a1c2f6f0b7d4e35 group/shop
  kas gitops diff --agent production group/shop --ref feature
  kas gitops recover --agent production group/shop

Exit codes:
  0   done
  64  the command line is invalid, or kas refuses the request
  69  kas or the agent does not answer
  diff has others: see kas gitops diff --help";

impl GitopsCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// kas or the agent refuses the request or does not answer.
    pub fn run(self) -> Result<ExitCode, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| CliError::unavailable(format!("no runtime: {error}")))?;
        let (text, code) = runtime.block_on(self.action.run())?;
        print(&text)?;
        Ok(ExitCode::from(code))
    }
}

impl Action {
    /// Returns the text to print, and the exit code.
    async fn run(self) -> Result<(String, u8), CliError> {
        let text = match self {
            Self::Diff(diff) => return diff.run().await,
            Self::List(ListOptions { agent, view }) => {
                let text = |body: &[u8]| {
                    let Projects { projects } = parse(body)?;
                    Ok(table(&projects, SystemTime::now()))
                };
                view.run(|| agent.send(Method::GET, ""), text).await
            }
            Self::Show(ShowOptions { project, view }) => {
                let text = |body: &[u8]| Ok(describe(&parse(body)?, &project.agent.agent, SystemTime::now()));
                view.run(|| project.send(Method::GET, ""), text).await
            }
            Self::Prune(project) => project.prune().await,
            Self::Sync(project) => project.sync().await,
            Self::Suspend(project) => project.command("suspend", "is suspended").await,
            Self::Resume(project) => project.command("resume", "is synced again").await,
            Self::Approve(ApproveOptions { project, code }) => {
                let done = "may delete the objects that it has shown";
                project.command(&with_code("approve", &code), done).await
            }
            Self::Recover(RecoverOptions { project, code }) => return project.recover(code.as_deref()).await,
        };
        text.map(|text| (text, 0))
    }
}

impl ViewOptions {
    /// Returns the text of a response. With `--watch` it prints each one that differs from the one before, and ends only if the caller is
    /// refused.
    async fn run(
        self,
        get: impl AsyncFn() -> Result<Bytes, CliError>,
        text: impl Fn(&[u8]) -> Result<String, CliError>,
    ) -> Result<String, CliError> {
        let text = |body: &[u8]| match self.output {
            Output::Json => Ok(with_newline(body)),
            Output::Text => text(body),
        };
        let mut body = get().await?;
        if !self.watch {
            return text(&body);
        }
        let mut retry = Retry::default();
        retry.keep_on();
        loop {
            print(&text(&body)?)?;
            let shown = without_look(&body);
            while without_look(&body) == shown {
                sleep(WATCH_PERIOD).await;
                body = retry.run(&get).await?;
            }
        }
    }
}

impl AgentOptions {
    async fn send(&self, method: Method, path: &str) -> Result<Bytes, CliError> {
        self.caller.send(method, &self.path(path)).await
    }

    fn path(&self, path: &str) -> String {
        agent_path(&self.agent, ServiceName::GITOPS, &format!("{PROJECTS_PATH}{path}"))
    }
}

impl ProjectOptions {
    async fn send(&self, method: Method, path: &str) -> Result<Bytes, CliError> {
        let project = percent::encode(&self.project);
        self.agent.send(method, &format!("/{project}{path}")).await
    }

    /// Posts a document, which takes up to `limit`.
    async fn post(&self, path: &str, body: Bytes, limit: Duration) -> Result<Bytes, CliError> {
        let project = percent::encode(&self.project);
        let path = self.agent.path(&format!("/{project}{path}"));
        self.agent.caller.post(&path, body, limit).await
    }

    /// Asks for the deletion of all objects, and shows those that wait for the approval.
    async fn prune(&self) -> Result<String, CliError> {
        self.send(Method::POST, "/prune").await?;
        let mut status = None;
        let mut retry = Retry::until(Some(Instant::now() + MAX_POLLS * WATCH_PERIOD));
        for _ in 0..MAX_POLLS {
            sleep(WATCH_PERIOD).await;
            let body = retry.run(|| self.agent.send(Method::GET, "")).await?;
            let Projects { projects } = parse(&body)?;
            let found = projects.into_iter().find(|found| found.project == self.project);
            let Some(found) = found else {
                return Ok(format!("{} had no objects and is gone\n", printable(&self.project)));
            };
            let is_decided = matches!(
                found.state,
                ProjectState::Held | ProjectState::Failed | ProjectState::InventoryLost
            );
            status = Some(found);
            if is_decided {
                break;
            }
        }
        Ok(status.map(|status| describe(&status, &self.agent.agent, SystemTime::now())).unwrap_or_default())
    }

    /// Asks for the inventory that agentk would write in place of the lost one, or approves it by its code. Returns what agentk has
    /// answered, and the exit code.
    async fn recover(&self, code: Option<&str>) -> Result<(String, u8), CliError> {
        let before = self.status().await?;
        match code {
            None => self.send(Method::POST, "/recover").await?,
            Some(code) => self.send(Method::POST, &with_code("/recover", code)).await?,
        };
        let status = wait_for_recovery(&before, code, || self.status()).await?;
        let agent = &self.agent.agent;
        match &status.recovery {
            _ if status.state != ProjectState::InventoryLost => {
                Ok((describe(&status, agent, SystemTime::now()), 0))
            }
            Some(plan) if code.is_none() => Ok((describe_recovery(&status, plan, agent), 0)),
            Some(plan) if code != Some(&*plan.code) => {
                Ok((describe_recovery(&status, plan, agent), CliError::USAGE))
            }
            _ => Err(CliError::unavailable(format!(
                "{} is still inventory-lost ({}): kas gitops show",
                printable(&self.project),
                printable(&status.message)
            ))),
        }
    }

    async fn status(&self) -> Result<ProjectStatus, CliError> {
        parse(&self.send(Method::GET, "").await?)
    }

    /// Asks for a sync, and returns what it does in the state of the project.
    async fn sync(&self) -> Result<String, CliError> {
        self.send(Method::POST, "/sync").await?;
        let effect = match self.status().await?.state {
            ProjectState::Suspended => "stays as it is, because it is suspended: kas gitops resume",
            ProjectState::Orphaned => "stays as it is, because it left the configuration",
            ProjectState::InventoryLost => {
                "stays as it is, because its inventory is lost: kas gitops recover"
            }
            _ => "is compared with Git now",
        };
        Ok(format!("{} {effect}\n", printable(&self.project)))
    }

    async fn command(&self, command: &str, done: &str) -> Result<String, CliError> {
        self.send(Method::POST, &format!("/{command}")).await?;
        Ok(format!("{} {done}\n", printable(&self.project)))
    }
}

/// Returns the path of a command that approves a plan by its code.
fn with_code(path: &str, code: &str) -> String {
    format!("{path}?code={}", percent::encode(code))
}

/// Polls the status of a project until agentk has answered a command about its lost inventory, at most [`MAX_POLLS`] times. Returns the last status.
/// `before` is the status before the command, and `code` that of the plan that the command approves.
async fn wait_for_recovery(
    before: &ProjectStatus,
    code: Option<&str>,
    get: impl AsyncFn() -> Result<ProjectStatus, CliError>,
) -> Result<ProjectStatus, CliError> {
    let mut polls = 0;
    let mut retry = Retry::until(Some(Instant::now() + MAX_POLLS * WATCH_PERIOD));
    loop {
        sleep(WATCH_PERIOD).await;
        polls += 1;
        let status = retry.run(&get).await?;
        let has_new_answer = status.answered != before.answered;
        let is_answered = match (status.state, &status.recovery, code) {
            // The plan of an earlier command may be there still.
            (ProjectState::InventoryLost, Some(plan), None) => {
                has_new_answer || Some(plan) != before.recovery.as_ref() || polls > POLLS_OF_OLD_PLAN
            }
            // The objects have changed.
            (ProjectState::InventoryLost, Some(plan), Some(code)) => plan.code != code,
            // It has failed, or a commit that has arrived meanwhile is tried first.
            (ProjectState::InventoryLost, None, _) | (ProjectState::Syncing, ..) => has_new_answer,
            _ => true,
        };
        if is_answered || polls == MAX_POLLS {
            return Ok(status);
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, CliError> {
    serde_json::from_slice(body)
        .map_err(|error| CliError::unavailable(format!("the response of the agent is invalid: {error}")))
}

/// Returns a response without the times of the last looks at the cluster, which change nothing else.
fn without_look(body: &[u8]) -> Value {
    let mut value = serde_json::from_slice(body).unwrap_or_else(|_| with_newline(body).into());
    let remove = |status: &mut Value| drop(status.as_object_mut().and_then(|status| status.remove("as_of")));
    remove(&mut value);
    value.get_mut("projects").and_then(Value::as_array_mut).into_iter().flatten().for_each(remove);
    value
}

fn with_newline(body: &[u8]) -> String {
    format!("{}\n", String::from_utf8_lossy(body).trim_end())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proto::gitops::RecoveryPlan;

    use super::*;

    type Seen = (ProjectState, Option<&'static str>, &'static str);

    fn status((state, code, answered): Seen) -> ProjectStatus {
        let recovery = code.map(|code| RecoveryPlan { code: code.to_owned(), ..RecoveryPlan::default() });
        ProjectStatus { state, recovery, answered: answered.to_owned(), ..ProjectStatus::default() }
    }

    /// Returns the number of requests after a command for a project that is seen like this, the first time before the command.
    async fn polls(approved: Option<&str>, seen: &[Seen]) -> usize {
        let count = Cell::new(0);
        let get = async || {
            count.set(count.get() + 1);
            Ok(status(seen[count.get().min(seen.len() - 1)]))
        };
        wait_for_recovery(&status(seen[0]), approved, get).await.unwrap();
        count.get()
    }

    const LOST: ProjectState = ProjectState::InventoryLost;

    #[tokio::test(start_paused = true)]
    async fn recovery_plan_of_an_earlier_command_is_not_shown_as_new() {
        let (none, old) = ((LOST, None, "1"), (LOST, Some("a"), "1"));
        assert_eq!(polls(None, &[none, none, old]).await, 2);
        assert_eq!(polls(None, &[old, old, (LOST, Some("b"), "1")]).await, 2);
        assert_eq!(polls(None, &[old, old, old, (LOST, Some("a"), "2")]).await, 3);
        assert_eq!(polls(None, &[old]).await, 6, "agentk does not say which command it has answered");
        assert_eq!(polls(None, &[old, old, (ProjectState::Synced, None, "1")]).await, 2, "by somebody else");
        assert_eq!(polls(None, &[none, (LOST, None, "2")]).await, 1, "it has failed");
        let syncing = |answered| (ProjectState::Syncing, None, answered);
        let seen = [none, syncing("1"), none, (LOST, Some("a"), "2")];
        assert_eq!(polls(None, &seen).await, 3, "agentk tries a commit that arrived meanwhile");
        assert_eq!(polls(Some("a"), &[none, syncing("1"), syncing("2")]).await, 2, "it goes on");
        assert_eq!(polls(None, &[none]).await, 30, "it still looks");
    }

    #[tokio::test(start_paused = true)]
    async fn approved_recovery_is_done_when_the_inventory_is_there_or_would_be_another_one() {
        let (plan, done) = ((LOST, Some("a"), "1"), (LOST, None, "1"));
        assert_eq!(polls(Some("a"), &[plan, plan, done, (ProjectState::Suspended, None, "1")]).await, 3);
        assert_eq!(polls(Some("a"), &[plan, plan, (LOST, Some("b"), "1")]).await, 2);
        assert_eq!(polls(Some("a"), &[plan]).await, 30);
    }

    #[test]
    fn look_that_sees_the_same_is_no_change() {
        let list = |state: &str, as_of: u64| {
            without_look(format!(r#"{{"projects":[{{"state":"{state}","as_of":{as_of}}}]}}"#).as_bytes())
        };
        let shown = |state: &str, as_of: u64| {
            without_look(format!(r#"{{"state":"{state}","as_of":{as_of}}}"#).as_bytes())
        };
        assert_eq!((list("held", 1), shown("held", 1)), (list("held", 2), shown("held", 2)));
        assert_ne!(list("held", 1), list("synced", 1));
        assert_ne!(shown("held", 1), shown("synced", 1));
        assert_ne!(without_look(b"no JSON"), without_look(b"other"));
    }
}
