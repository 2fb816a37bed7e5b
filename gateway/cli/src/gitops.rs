//! The command `kas gitops`: the state of manifests from Git, and commands about them.

mod diff;

use std::{
    fmt::Write as _,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use clap::{Subcommand, ValueEnum};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proto::gitops::{
    CommitInfo, HeldDeletions, ObjectCounts, PROJECTS_PATH, ProjectState, ProjectStatus, SyncRecord,
};
use serde::Deserialize;
use tokio::time::sleep;

use self::diff::DiffOptions;
use crate::{
    CliError,
    caller::CallerOptions,
    print,
    table::{Table, age, printable},
};

/// The time between two looks at a status.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// The looks at a project that shall be pruned until its objects are known.
const PRUNE_LOOKS: u32 = 30;

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
    /// Show one project: its state, its errors and its last syncs
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
    /// Print it again whenever it changes, until Ctrl-C
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
            Self::Sync(project) => project.command("sync", "will be synced now").await,
            Self::Suspend(project) => project.command("suspend", "is suspended").await,
            Self::Resume(project) => project.command("resume", "is synced again").await,
            Self::Approve(ApproveOptions { project, code }) => {
                let code = utf8_percent_encode(&code, NON_ALPHANUMERIC);
                project
                    .command(&format!("approve?code={code}"), "may delete the objects that it has shown")
                    .await
            }
        };
        text.map(|text| (text, 0))
    }
}

impl ViewOptions {
    /// Returns the text of a response. With `--watch` it prints each one that differs from the one before, and ends with an error only.
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
        loop {
            print(&text(&body)?)?;
            let shown = body.clone();
            while body == shown {
                sleep(WATCH_PERIOD).await;
                body = get().await?;
            }
        }
    }
}

impl AgentOptions {
    async fn send(&self, method: Method, path: &str) -> Result<Bytes, CliError> {
        self.caller.send(method, &self.path(path)).await
    }

    fn path(&self, path: &str) -> String {
        let agent = utf8_percent_encode(&self.agent, NON_ALPHANUMERIC);
        format!("/agents/{agent}/gitops{PROJECTS_PATH}{path}")
    }
}

impl ProjectOptions {
    async fn send(&self, method: Method, path: &str) -> Result<Bytes, CliError> {
        let project = utf8_percent_encode(&self.project, NON_ALPHANUMERIC);
        self.agent.send(method, &format!("/{project}{path}")).await
    }

    /// Posts a document, which takes up to `limit`.
    async fn post(&self, path: &str, body: Bytes, limit: Duration) -> Result<Bytes, CliError> {
        let project = utf8_percent_encode(&self.project, NON_ALPHANUMERIC);
        let path = self.agent.path(&format!("/{project}{path}"));
        self.agent.caller.post(&path, body, limit).await
    }

    /// Asks for the deletion of all objects, and shows those that wait for the approval.
    async fn prune(&self) -> Result<String, CliError> {
        self.send(Method::POST, "/prune").await?;
        let mut status = None;
        for _ in 0..PRUNE_LOOKS {
            sleep(WATCH_PERIOD).await;
            let Projects { projects } = parse(&self.agent.send(Method::GET, "").await?)?;
            let found = projects.into_iter().find(|found| found.project == self.project);
            let Some(found) = found else {
                return Ok(format!("{} had no objects and is gone\n", printable(&self.project)));
            };
            let is_decided = matches!(found.state, ProjectState::Held | ProjectState::Failed);
            status = Some(found);
            if is_decided {
                break;
            }
        }
        Ok(status.map(|status| describe(&status, &self.agent.agent, SystemTime::now())).unwrap_or_default())
    }

    async fn command(&self, command: &str, done: &str) -> Result<String, CliError> {
        self.send(Method::POST, &format!("/{command}")).await?;
        Ok(format!("{} {done}\n", printable(&self.project)))
    }
}

fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, CliError> {
    serde_json::from_slice(body)
        .map_err(|error| CliError::unavailable(format!("the response of the agent is invalid: {error}")))
}

fn with_newline(body: &[u8]) -> String {
    format!("{}\n", String::from_utf8_lossy(body).trim_end())
}

fn table(projects: &[ProjectStatus], now: SystemTime) -> String {
    if projects.is_empty() {
        return "The agent has no projects.\n".to_owned();
    }
    let mut table = Table::new(&["PROJECT", "STATE", "COMMIT", "OBJECTS", "FAILED", "LAST-SYNC"]);
    for project in projects {
        let ObjectCounts { total, failed, degraded, .. } = project.objects;
        table.row([
            project.project.clone(),
            project.state.as_str().to_owned(),
            project.synced.as_ref().map(short).unwrap_or_default(),
            total.to_string(),
            (failed + degraded).to_string(),
            project.history.first().map(|record| ago(record, now)).unwrap_or_default(),
        ]);
    }
    table.to_string()
}

/// Describes a project. All texts come from the agent and from Git.
fn describe(status: &ProjectStatus, agent: &str, now: SystemTime) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:<12}{}", format!("{name}:"), printable(&value));
    };
    let commit = |commit: &CommitInfo| {
        let subject = if commit.subject.is_empty() { String::new() } else { format!(" {}", commit.subject) };
        let author = if commit.author.is_empty() { String::new() } else { format!(" ({})", commit.author) };
        format!("{}{subject}{author}", short(commit))
    };
    line("Project", status.project.clone());
    line("State", status.state.as_str().to_owned());
    line("Message", status.message.clone());
    if !status.problem.is_empty() && status.problem != status.message {
        line("Source", status.problem.clone());
    }
    line("Follows", status.reference.clone());
    line("Synced", status.synced.as_ref().map_or_else(|| "nothing yet".to_owned(), commit));
    if status.attempted != status.synced
        && let Some(attempted) = &status.attempted
    {
        line("Attempted", commit(attempted));
    }
    let ObjectCounts { total, applied, unchanged, pruned, kept, failed, degraded, progressing } =
        status.objects;
    line(
        "Objects",
        format!(
            "{total} in Git: {applied} applied, {unchanged} unchanged, {failed} failed, {degraded} degraded, {progressing} starting; \
             {pruned} deleted, {kept} kept"
        ),
    );
    for error in &status.errors {
        let object = error.object.as_ref().map(|id| format!("{id}: ")).unwrap_or_default();
        let file = if error.file.is_empty() { String::new() } else { format!("{}: ", error.file) };
        line("Error", format!("{file}{object}{}", error.message));
    }
    for kept in &status.kept {
        let object = kept.object.as_ref().map(|id| format!("{id}: ")).unwrap_or_default();
        line("Kept", format!("{object}{}", kept.message));
    }
    let more = (status.objects.kept as usize).saturating_sub(status.kept.len());
    if more > 0 && !status.kept.is_empty() {
        line("Kept", format!("and {more} more"));
    }
    if let Some(HeldDeletions { code, count, objects, .. }) = &status.held {
        for held in objects {
            line("Deletes", held.object.to_string());
        }
        let more = (*count as usize).saturating_sub(objects.len());
        if more > 0 {
            line("Deletes", format!("and {more} more"));
        }
        line("Approve", format!("kas gitops approve --agent {agent} --code {code} {}", status.project));
    }
    if !status.history.is_empty() {
        let mut table = Table::new(&["COMMIT", "STATE", "APPLIED", "DELETED", "FAILED", "TOOK", "ENDED"]);
        for record in &status.history {
            table.row([
                record.commit.chars().take(12).collect(),
                record.state.as_str().to_owned(),
                record.objects.applied.to_string(),
                record.objects.pruned.to_string(),
                record.objects.failed.to_string(),
                format!("{}ms", record.duration),
                ago(record, now),
            ]);
        }
        let _ = write!(text, "\n{table}");
    }
    text
}

fn short(commit: &CommitInfo) -> String {
    commit.id.chars().take(12).collect()
}

fn ago(record: &SyncRecord, now: SystemTime) -> String {
    let ended = SystemTime::UNIX_EPOCH + Duration::from_millis(record.ended);
    age(now.duration_since(ended).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proto::gitops::{ObjectError, ObjectId};

    use super::*;

    fn status() -> ProjectStatus {
        let commit = CommitInfo {
            id: "c".repeat(40),
            subject: "Deploy\u{1b}[2J".to_owned(),
            author: "Ada".to_owned(),
        };
        let objects =
            ObjectCounts { total: 3, applied: 1, unchanged: 1, failed: 1, ..ObjectCounts::default() };
        let ended = 1_000_000;
        let record = SyncRecord {
            commit: commit.id.clone(),
            ended,
            duration: 55,
            state: ProjectState::Failed,
            objects,
        };
        let object = ObjectId { kind: "ConfigMap".to_owned(), name: "a".to_owned(), ..ObjectId::default() };
        let message = "exceeded quota (403)".to_owned();
        ProjectStatus {
            project: "group/shop".to_owned(),
            reference: "branch main".to_owned(),
            state: ProjectState::Failed,
            message: "1 object failed; nothing was deleted".to_owned(),
            problem: "the repository does not answer".to_owned(),
            synced: None,
            attempted: Some(commit),
            kept: vec![ObjectError {
                object: Some(object.clone()),
                file: String::new(),
                message: "it belongs to another object (ownerReferences)".to_owned(),
            }],
            settings: None,
            held: Some(HeldDeletions { code: "0a1b".to_owned(), count: 2, objects: vec![object.clone()] }),
            revision: String::new(),
            answered: String::new(),
            objects,
            errors: vec![ObjectError { object: Some(object), file: "app.yaml:3".to_owned(), message }],
            history: vec![record],
        }
    }

    #[test]
    fn project_is_shown_for_people_and_moves_no_cursor() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1090);
        let expected = "\
Project:    group/shop
State:      failed
Message:    1 object failed; nothing was deleted
Source:     the repository does not answer
Follows:    branch main
Synced:     nothing yet
Attempted:  cccccccccccc Deploy?[2J (Ada)
Objects:    3 in Git: 1 applied, 1 unchanged, 1 failed, 0 degraded, 0 starting; 0 deleted, 0 kept
Error:      app.yaml:3: ConfigMap a: exceeded quota (403)
Kept:       ConfigMap a: it belongs to another object (ownerReferences)
Deletes:    ConfigMap a
Deletes:    and 1 more
Approve:    kas gitops approve --agent prod --code 0a1b group/shop

COMMIT        STATE   APPLIED  DELETED  FAILED  TOOK  ENDED
cccccccccccc  failed  1        0        1       55ms  1m30s
";
        assert_eq!(describe(&status(), "prod", now), expected);
        let listed = table(&[status()], now);
        assert!(listed.contains("group/shop  failed  -       3        1       1m30s"), "{listed}");
        assert_eq!(table(&[], now), "The agent has no projects.\n");
    }
}
