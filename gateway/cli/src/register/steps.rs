//! The steps of `kas agents register`.

use std::{io::Write as _, path::Path, time::Duration};

use secrecy::SecretString;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::{
    RegisterCommand,
    agent::RegisteredAgent,
    agent_token::{ActiveToken, AgentTokens, MAX_TOKENS, names},
    cluster::SecretOwner,
    configuration::{ConfigurationFile, ConfigurationState, default_configuration},
    gitlab::GitLab,
    project::AgentProject,
    refusal::ErrorContext,
    token_place::{TokenOutput, TokenPlan, plan},
};
use crate::{
    CliError, CommandResult,
    chart::kas_address,
    print,
    retry::Retry,
    table::{age, printable},
};

/// The pause between two requests for the last use of a token.
const PAUSE: Duration = Duration::from_secs(2);

/// A run of the command, after its options have been checked.
pub(super) struct Registration<'a> {
    /// The options.
    pub(super) command: &'a RegisterCommand,
    /// GitLab, as its user sees it.
    pub(super) gitlab: GitLab,
    /// The first configuration, if it is not the default.
    pub(super) configuration: Option<String>,
}

/// The state before the command, and the work that is left.
struct Plan<'a> {
    project: &'a AgentProject,
    kas: String,
    agent: Option<RegisteredAgent>,
    /// The file with the first configuration, unless it is left out.
    file: Option<(ConfigurationFile<'a>, ConfigurationState)>,
    active: Vec<ActiveToken>,
    token: TokenPlan,
    has_release: bool,
}

/// A step, as the lines on standard error and the errors name it.
#[derive(Clone, Copy)]
struct Step(&'static str);

const PROJECT: Step = Step("project");
const KAS: Step = Step("kas");
const CLUSTER: Step = Step("cluster");
const CHART: Step = Step("chart");
const AGENT: Step = Step("agent");
const CONFIGURATION: Step = Step("configuration");
const TOKEN: Step = Step("token");
const SECRET: Step = Step("secret");
const INSTALLATION: Step = Step("installation");
const CONNECTION: Step = Step("connection");
const NEXT: Step = Step("next");

/// The part of the metadata of GitLab that is about its kas.
#[derive(Deserialize)]
struct Metadata {
    kas: Option<KasMetadata>,
}

#[derive(Deserialize)]
struct KasMetadata {
    #[serde(rename = "externalUrl")]
    external_url: Option<String>,
}

impl Step {
    /// Prints what the step has done. Standard output is for the commands.
    fn done(self, text: &str) {
        // If standard error is closed, the line is lost.
        let _ = writeln!(std::io::stderr(), "{:<14} {}", self.0, printable(text));
    }

    /// Names the step in an error.
    fn check<T>(self, result: Result<T, CliError>) -> Result<T, CliError> {
        // The message may have names from GitLab and the cluster.
        result.map_err(|error| CliError {
            message: format!("{}: {}", self.0, printable(&error.message)),
            ..error
        })
    }
}

impl Registration<'_> {
    /// Does all steps. Those that only read come first, so that their errors leave nothing behind.
    pub(super) async fn run(&self) -> CommandResult {
        let project = AgentProject::find(&self.gitlab, &self.command.gitlab.project).await;
        let project = PROJECT.check(project)?;
        PROJECT.done(&format!("{} (id {}) of {}", project.path, project.id, self.gitlab.url().as_str()));
        let plan = self.plan(&project).await?;
        if self.command.mode.dry_run { self.show(&plan) } else { self.carry_out(plan).await }
    }

    /// Reads the state of GitLab and of the cluster.
    async fn plan<'a>(&'a self, project: &'a AgentProject) -> Result<Plan<'a>, CliError> {
        let (command, gitlab) = (self.command, &self.gitlab);
        let kas = KAS.check(self.kas_address().await)?;
        KAS.done(&kas);
        let file = CONFIGURATION.check(self.find_configuration(project).await)?;
        let agent = AGENT.check(RegisteredAgent::find(gitlab, project, &command.agent).await)?;
        let active = match &agent {
            Some(agent) => TOKEN.check(AgentTokens::new(gitlab, project, agent).list().await)?,
            None => Vec::new(),
        };
        let (place, state, has_release) = match &command.token.token_output {
            Some(output) => (output.name(), TOKEN.check(output.find())?, false),
            None => {
                let release = &command.release;
                CLUSTER.done(&format!("the context {}", CLUSTER.check(release.context().await)?));
                CHART.done(&CHART.check(release.find_chart().await)?);
                let state =
                    SECRET.check(release.find_secret(agent.as_ref().map(|agent| self.owner(agent))).await)?;
                let has_release = INSTALLATION.check(release.has_release().await)?;
                (format!("the Secret {}", release.secret_name()), state, has_release)
            }
        };
        let token = TOKEN.check(plan(&active, (&place, state), command.token.new_token))?;
        if let (TokenPlan::Create, MAX_TOKENS.., Some(agent)) = (token, active.len(), &agent) {
            return TOKEN.check(Err(AgentTokens::new(gitlab, project, agent).limit(&active)));
        }
        Ok(Plan { project, kas, agent, file, active, token, has_release })
    }

    /// Prints the steps without doing them.
    fn show(&self, plan: &Plan<'_>) -> CommandResult {
        let command = self.command;
        match &plan.agent {
            Some(agent) => AGENT.done(&format!("{} exists (id {})", command.agent, agent.id)),
            None => AGENT.done(&format!("{} would be registered", command.agent)),
        }
        match &plan.file {
            Some((file, ConfigurationState::Missing)) => {
                CONFIGURATION.done(&format!(
                    "{} would be committed to the branch {}",
                    file.path(),
                    file.branch()
                ));
            }
            Some((file, ConfigurationState::MissingWithBranch)) => {
                CONFIGURATION.done(&format!(
                    "{} would be committed to the new branch {}",
                    file.path(),
                    file.branch()
                ));
            }
            Some((file, state)) => self.report_existing(file, *state),
            None => CONFIGURATION.done("left out"),
        }
        let place = match &command.token.token_output {
            Some(output) => output.name(),
            None => format!("the Secret {}", command.release.secret_name()),
        };
        match plan.token {
            TokenPlan::Keep => TOKEN.done(&format!("that of {place} would be used")),
            TokenPlan::Create => TOKEN.done(&format!("one would be created, for {place}")),
        }
        let release = command.release.release_name();
        match (command.mode.install, plan.has_release) {
            (true, true) => INSTALLATION.done(&format!("the Helm release {release} would be upgraded")),
            (true, false) => INSTALLATION.done(&format!("the Helm release {release} would be installed")),
            (false, _) => {
                INSTALLATION.done(&format!("the commands for the Helm release {release} would be printed"))
            }
        }
        match command.wait() {
            Duration::ZERO => {}
            wait => CONNECTION.done(&format!("it would be waited for, at most {}", age(wait))),
        }
        Ok(())
    }

    async fn carry_out(&self, plan: Plan<'_>) -> CommandResult {
        let Plan { project, kas, agent, file, active, token, has_release } = plan;
        let command = self.command;
        let agent = AGENT.check(self.register(project, agent).await)?;
        if let Some((file, state)) = &file {
            CONFIGURATION.check(self.configure(file, *state, project).await)?;
        }
        let tokens = AgentTokens::new(&self.gitlab, project, &agent);
        let ids = match token {
            TokenPlan::Keep => {
                TOKEN.done(&format!("the one that is there is used{}", names(&active)));
                active.iter().map(|token| token.id).collect()
            }
            TokenPlan::Create => vec![self.create_token(&tokens, &agent).await?],
        };
        let former = if token == TokenPlan::Create { names(&active) } else { String::new() };
        match &command.token.token_output {
            None => {
                INSTALLATION.check(command.release.install(&kas, has_release).await)?;
                let done = if has_release { "upgraded" } else { "installed" };
                INSTALLATION.done(&format!("the Helm release {} is {done}", command.release.release_name()));
            }
            Some(output) => self.print_script(output, (&agent, project), &kas)?,
        }
        CONNECTION.check(self.wait(&tokens, &ids).await)?;
        if !former.is_empty() {
            let page = project.page(&self.gitlab, &format!("cluster_agents/{}", command.agent));
            NEXT.done(&format!("revoke the former token, if no agentk uses it, at {page}{former}"));
        }
        self.show_next(project, &agent, file.as_ref().map(|(file, _)| file));
        Ok(())
    }

    /// Returns the address of kas: that of the command line, or that of GitLab.
    async fn kas_address(&self) -> Result<String, CliError> {
        if let Some(address) = &self.command.kas {
            return Ok(address.clone());
        }
        let metadata = self.gitlab.get::<Metadata>("/metadata").await;
        let address = match metadata {
            Ok(Metadata { kas }) => kas.and_then(|kas| kas.external_url),
            // GitLab before 15.2 has no such path.
            Err(error) if error.refusal().is_some_and(|refusal| refusal.is_missing()) => None,
            Err(error) => {
                let gitlab = self.gitlab.url().as_str();
                let context = ErrorContext { gitlab, project: &self.command.gitlab.project };
                return Err(error.into_error(context, "Maintainer"));
            }
        };
        let Some(address) = address else {
            return Err(CliError::usage(
                "GitLab does not name the address of its kas: give it with --kas wss://…",
            ));
        };
        kas_address(&address).map_err(|_| {
            let address = printable(&address.chars().take(200).collect::<String>());
            CliError::usage(format!(
                "GitLab names {address}, and the chart of agentk takes ws:// and wss:// only: give another address with --kas"
            ))
        })
    }

    async fn find_configuration<'a>(
        &'a self,
        project: &'a AgentProject,
    ) -> Result<Option<(ConfigurationFile<'a>, ConfigurationState)>, CliError> {
        let options = &self.command.configuration;
        if options.no_configuration {
            return Ok(None);
        }
        let file = ConfigurationFile::new(project, &self.command.agent, options.branch.as_deref())?;
        let state = file.find(&self.gitlab).await?;
        Ok(Some((file, state)))
    }

    async fn register(
        &self,
        project: &AgentProject,
        found: Option<RegisteredAgent>,
    ) -> Result<RegisteredAgent, CliError> {
        let name = &self.command.agent;
        match found {
            Some(agent) => {
                AGENT.done(&format!("{name} exists (id {})", agent.id));
                Ok(agent)
            }
            None => {
                let agent = RegisteredAgent::register(&self.gitlab, project, name).await?;
                AGENT.done(&format!("{name} is registered (id {})", agent.id));
                Ok(agent)
            }
        }
    }

    async fn configure(
        &self,
        file: &ConfigurationFile<'_>,
        state: ConfigurationState,
        project: &AgentProject,
    ) -> CommandResult {
        if matches!(state, ConfigurationState::Exists | ConfigurationState::ExistsOnBranch) {
            self.report_existing(file, state);
            return Ok(());
        }
        let text = match &self.configuration {
            Some(text) => text,
            None => &default_configuration(&self.command.agent, &project.path),
        };
        if file.commit(&self.gitlab, text, state).await? {
            CONFIGURATION.done(&format!("{} is committed to the branch {}", file.path(), file.branch()));
        } else {
            self.report_existing(file, ConfigurationState::ExistsOnBranch);
        }
        Ok(())
    }

    fn report_existing(&self, file: &ConfigurationFile<'_>, state: ConfigurationState) {
        let place = match state {
            ConfigurationState::Exists => String::new(),
            _ => format!(" on the branch {}", file.branch()),
        };
        let ignored = match &self.configuration {
            Some(_) => "; --configuration has no effect: change the file in the repository",
            None => "",
        };
        CONFIGURATION.done(&format!("{} exists{place}, and stays as it is{ignored}", file.path()));
    }

    /// Creates a token and stores it. A token that cannot be stored is revoked: GitLab does not show it again, and counts it.
    async fn create_token(&self, tokens: &AgentTokens<'_>, agent: &RegisteredAgent) -> Result<u64, CliError> {
        let name = &self.command.agent;
        let output = self.command.token.token_output.as_ref();
        // The file is there before the token, which GitLab shows once.
        let reserved = TOKEN.check(output.map(TokenOutput::reserve).transpose())?;
        let token = match TOKEN.check(tokens.create(name).await) {
            Ok(token) => token,
            Err(error) => {
                reserved.into_iter().for_each(|reserved| reserved.release());
                return Err(error);
            }
        };
        let stored = match reserved {
            Some(reserved) => TOKEN.check(reserved.write(&token.secret)),
            None => SECRET.check(self.apply_secret(&token.secret, agent).await),
        };
        if let Err(error) = stored {
            let end = if tokens.revoke(token.id).await {
                "the new token has been revoked, so that the command can be run again".to_owned()
            } else {
                format!("the new token (id {}) is of no use: revoke it in GitLab", token.id)
            };
            return Err(CliError { message: format!("{}; {end}", error.message), ..error });
        }
        let place = output
            .map_or_else(|| format!("the Secret {}", self.command.release.secret_name()), TokenOutput::name);
        TOKEN.done(&format!("a new one (id {}) is in {place}", token.id));
        Ok(token.id)
    }

    async fn apply_secret(&self, token: &SecretString, agent: &RegisteredAgent) -> CommandResult {
        self.command.release.apply_secret(token, self.owner(agent)).await
    }

    fn owner(&self, agent: &RegisteredAgent) -> SecretOwner<'_> {
        SecretOwner { agent: agent.id, gitlab: self.gitlab.url().as_str() }
    }

    /// Prints the commands of the installation. Standard output is that of the token, if it is printed there.
    fn print_script(
        &self,
        output: &TokenOutput,
        (agent, project): (&RegisteredAgent, &AgentProject),
        kas: &str,
    ) -> CommandResult {
        let names = (&self.command.agent, self.owner(agent), project.path.as_str());
        let script = |token: &Path| self.command.release.script(names, token, kas);
        match output {
            TokenOutput::File(path) => print(&script(path))?,
            TokenOutput::Stdout => {
                // If standard error is closed, the commands are lost.
                let _ = writeln!(std::io::stderr(), "{}", script(Path::new("/dev/stdin")).trim_end());
            }
        }
        INSTALLATION.done("the commands are printed");
        Ok(())
    }

    /// Waits until GitLab has seen one of the tokens in use.
    async fn wait(&self, tokens: &AgentTokens<'_>, ids: &[u64]) -> CommandResult {
        let limit = self.command.wait();
        if limit.is_zero() {
            return Ok(());
        }
        CONNECTION.done(&format!("waiting for the agent, at most {}", age(limit)));
        let start = Instant::now();
        let end = start + limit;
        let mut retry = Retry::until(Some(end));
        loop {
            if let Some(since) = retry.run(async || tokens.connected_since_use(ids).await).await? {
                let (waited, since) = (age(start.elapsed()), age(since));
                CONNECTION
                    .done(&format!("the agent is connected, after {waited}; GitLab has seen it {since} ago"));
                return Ok(());
            }
            let now = Instant::now();
            if now >= end {
                break;
            }
            sleep(PAUSE.min(end - now)).await;
        }
        let diagnosis = self.command.release.diagnosis();
        Err(CliError::unavailable(format!(
            "GitLab has not seen the agent within {}: {diagnosis} find out why; the same command waits again",
            age(limit)
        )))
    }

    fn show_next(
        &self,
        project: &AgentProject,
        agent: &RegisteredAgent,
        file: Option<&ConfigurationFile<'_>>,
    ) {
        let name = &self.command.agent;
        if let Some(file) = file.filter(|file| file.needs_merge()) {
            let page = file.merge_page(&self.gitlab);
            NEXT.done(&format!(
                "merge the branch {}, because kas reads the default branch: {page}",
                file.branch()
            ));
        }
        if self.command.wait().is_zero() {
            let page = project.page(&self.gitlab, &format!("cluster_agents/{name}"));
            NEXT.done(&format!("GitLab shows whether the agent is connected: {page}"));
        }
        NEXT.done(&format!("in a CI job: kubectl config use-context {}:{name}", project.path));
        NEXT.done(&format!("on your machine: glab cluster agent update-kubeconfig --agent {}", agent.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_its_step_and_cannot_control_the_terminal() {
        let error = SECRET.check::<()>(Err(CliError::unavailable("the branch a\u{1b}[2J"))).unwrap_err();
        assert_eq!((error.code, &*error.message), (CliError::UNAVAILABLE, "secret: the branch a?[2J"));
    }
}
