//! agentk in the cluster: the Secret with its token, and the release of its chart.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use proto::AgentName;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::json;

use super::{program::ProgramCall, token_place::PlaceState};
use crate::{
    CliError, CommandResult, chart,
    shell::{shell_argument, shell_word},
    table::printable,
};

/// The time for one command of kubectl, and for one of helm that only reads.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// The time for an installation, which does not wait for pods.
const INSTALL_LIMIT: Duration = Duration::from_secs(300);
/// The annotations of the Secret that name its agent.
const AGENT_ID: &str = "agent.gitlab.com/id";
const GITLAB_URL: &str = "agent.gitlab.com/gitlab-url";
/// The chart in a checkout of the repository of kas.
pub(super) const DEFAULT_CHART: &str = "deploy/charts/agentk";

/// How agentk is installed.
#[derive(Debug, clap::Args)]
pub(super) struct ReleaseOptions {
    /// The namespace to install agentk in
    #[arg(long, value_name = "NAMESPACE", default_value = "agentk", value_parser = chart::namespace)]
    namespace: String,
    /// The name of the Helm release, of which several agents in one namespace need several
    #[arg(long, value_name = "NAME", default_value = "agentk", value_parser = object_name)]
    release: String,
    /// The name of the Secret with the token of the agent; the default is that of the release with -token
    #[arg(long, value_name = "NAME", value_parser = object_name)]
    secret: Option<String>,
    /// The chart of agentk: a directory, an archive, or oci://…
    #[arg(long, value_name = "CHART", default_value = DEFAULT_CHART)]
    chart: String,
    /// The version of a chart that is not a directory
    #[arg(long, value_name = "VERSION")]
    chart_version: Option<String>,
    /// The image of agentk
    #[arg(long, value_name = "IMAGE", default_value = chart::DEFAULT_IMAGE, value_parser = chart::image)]
    image: String,
    /// The certificates (PEM) that agentk trusts for kas instead of those of its image
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    kas_cacert: Option<PathBuf>,
    /// Further values of the chart, as for helm; may be repeated
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    values: Vec<PathBuf>,
    /// The context of the kubeconfig; the default is the current one
    #[arg(long, value_name = "CONTEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    kube_context: Option<String>,
}

/// The values of a Helm release, as far as they are read.
#[derive(Deserialize)]
struct ReleaseValues {
    config: ReleaseConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReleaseConfig {
    secret_name: Option<String>,
    token: Option<String>,
}

/// The owner of a Secret.
#[derive(Clone, Copy, Debug)]
pub(super) struct SecretOwner<'a> {
    /// The id of the agent.
    pub(super) agent: u64,
    /// The address of GitLab.
    pub(super) gitlab: &'a str,
}

impl ReleaseOptions {
    /// Returns the namespace and the name of the Secret.
    pub(super) fn secret_name(&self) -> String {
        format!("{}/{}", self.namespace, self.secret())
    }

    /// Returns the name of the release with its namespace.
    pub(super) fn release_name(&self) -> String {
        format!("{}/{}", self.namespace, self.release)
    }

    /// Returns the name of the context for messages.
    pub(super) async fn context(&self) -> Result<String, CliError> {
        if let Some(context) = &self.kube_context {
            return Ok(printable(context));
        }
        let current =
            self.kubectl(&["config", "current-context"], None).output().await.map_err(|error| CliError {
                message: format!("{}; choose a cluster with --kube-context or KUBECONFIG", error.message),
                ..error
            })?;
        Ok(printable(current.trim()))
    }

    /// Checks that helm finds the chart, and returns its name and version.
    pub(super) async fn find_chart(&self) -> Result<String, CliError> {
        let mut arguments = vec!["show".to_owned(), "chart".to_owned(), self.chart.clone()];
        arguments.extend(self.version_flags());
        let shown = helm(arguments, READ_LIMIT).output().await.map_err(|error| {
            let hint = "run it in a checkout of the repository of kas, or name the chart with --chart";
            let hint = if self.chart == DEFAULT_CHART { format!("; {hint}") } else { String::new() };
            CliError { message: format!("{}{hint}", error.message), ..error }
        })?;
        let field = |name: &str| {
            let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            printable(line.unwrap_or("?").trim())
        };
        Ok(format!("{} {}", field("name"), field("version")))
    }

    /// Looks for the Secret. One of another agent, or of a Helm release, is an error.
    pub(super) async fn find_secret(&self, owner: Option<SecretOwner<'_>>) -> Result<PlaceState, CliError> {
        let fields = [
            r"{.metadata.labels.app\.kubernetes\.io/managed-by}",
            r"{.metadata.annotations.agent\.gitlab\.com/id}",
            r"{.metadata.annotations.agent\.gitlab\.com/gitlab-url}",
        ];
        // The request of kubectl returns the token, too, and this command does not.
        let path = format!("jsonpath=found {}", fields.join("{\"\\n\"}"));
        let secret = self.secret();
        let arguments = [
            "get",
            "secret",
            &secret,
            "--namespace",
            &self.namespace,
            "--ignore-not-found",
            "--output",
            &path,
        ];
        let shown = self.kubectl(&arguments, None).output().await?;
        let Some(shown) = shown.strip_prefix("found ") else { return Ok(PlaceState::Empty) };
        let mut lines = shown.lines().map(str::trim);
        let (manager, agent, gitlab) = (lines.next(), lines.next(), lines.next());
        let name = self.secret_name();
        if manager == Some("Helm") {
            return Err(CliError::usage(format!(
                "the Secret {name} belongs to a Helm release, which would remove it with its value config.token: choose another \
                 name with --secret"
            )));
        }
        let (Some(agent), Some(gitlab)) = (agent.filter(|id| !id.is_empty()), gitlab) else {
            let remedy = match owner {
                Some(owner) => format!(", or, if it is that of this agent: {}", self.annotate(owner)),
                None => String::new(),
            };
            return Err(CliError::usage(format!(
                "the Secret {name} does not name its agent, so that it may be that of another agent: choose another --release or \
                 --secret{remedy}"
            )));
        };
        if owner.is_some_and(|owner| owner.agent.to_string() == agent && owner.gitlab == gitlab) {
            return Ok(PlaceState::Full { is_of_agent: true });
        }
        Err(CliError::usage(format!(
            "the Secret {name} has the token of another agent (id {} of {}): choose another --namespace, or --release and --secret, or \
             delete it if that agent is gone",
            printable(agent),
            printable(gitlab)
        )))
    }

    /// Returns the command that lets the Secret name its agent.
    fn annotate(&self, owner: SecretOwner<'_>) -> String {
        format!(
            "kubectl{context} annotate secret {secret} --namespace {namespace} {AGENT_ID}={agent} {GITLAB_URL}={gitlab}",
            context = self.context_flag("--context"),
            secret = self.secret(),
            namespace = self.namespace,
            agent = owner.agent,
            gitlab = shell_word(owner.gitlab),
        )
    }

    /// Returns a flag with the context of the kubeconfig, for a shell.
    fn context_flag(&self, flag: &str) -> String {
        let context = self.kube_context.as_deref().map(shell_argument);
        context.map_or_else(String::new, |context| format!(" {flag} {context}"))
    }

    /// Creates the namespace and the Secret, or replaces the token of the Secret.
    pub(super) async fn apply_secret(&self, token: &SecretString, owner: SecretOwner<'_>) -> CommandResult {
        let create = self.kubectl(&["create", "namespace", &self.namespace], None);
        let end = create.run().await?;
        // A user of a namespace may not create one, and has it already.
        let is_usable =
            end.is_success || end.errors.contains("AlreadyExists") || end.errors.contains("Forbidden");
        if !is_usable {
            return Err(create.failure(&end));
        }
        let object = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self.secret(),
                "namespace": self.namespace,
                "labels": {"app.kubernetes.io/managed-by": "kas"},
                "annotations": {AGENT_ID: owner.agent.to_string(), GITLAB_URL: owner.gitlab},
            },
            "stringData": {"token": token.expose_secret()},
        });
        let object = SecretString::from(object.to_string());
        // The apply of the client would keep a copy of the token in an annotation.
        let arguments =
            ["apply", "--server-side", "--force-conflicts", "--field-manager", "kas", "--filename", "-"];
        self.kubectl(&arguments, Some(object)).output().await.map(|_| ())
    }

    /// Returns whether the release exists.
    pub(super) async fn has_release(&self) -> Result<bool, CliError> {
        let filter = format!("^{}$", self.release);
        let mut arguments = ["list", "--all", "--short", "--filter", &filter].map(str::to_owned).to_vec();
        arguments.extend(self.place_flags());
        let listed = helm(arguments, READ_LIMIT).output().await?;
        let exists = listed.lines().any(|line| line.trim() == self.release);
        if exists {
            self.check_release().await?;
        }
        Ok(exists)
    }

    /// Checks that the release has the Secret of this command. One of another agent would get the token of this one.
    async fn check_release(&self) -> CommandResult {
        let mut arguments =
            ["get", "values", &self.release, "--all", "--output", "json"].map(str::to_owned).to_vec();
        arguments.extend(self.place_flags());
        let end = helm(arguments, READ_LIMIT).run().await?;
        // The values may have a token, so that no message has a part of them.
        let values: Option<ReleaseValues> = serde_json::from_str(&end.output).ok().filter(|_| end.is_success);
        let release = &self.release;
        let config = values.map(|values| values.config).ok_or_else(|| {
            CliError::unavailable(format!(
                "helm get values {release} does not show the values of the release"
            ))
        })?;
        let (secret, own) = (config.secret_name.unwrap_or_default(), self.secret());
        if config.token.is_some_and(|token| !token.is_empty()) || secret != own {
            return Err(CliError::usage(format!(
                "the Helm release {release} in the namespace {} does not use the Secret {own}, so that it may be that of another agent: \
                 choose another --release, or name its Secret with --secret",
                self.namespace
            )));
        }
        Ok(())
    }

    /// Installs the release, or upgrades it.
    pub(super) async fn install(&self, kas_address: &str, exists: bool) -> CommandResult {
        let mut arguments = self.helm_arguments(kas_address);
        if exists {
            // The values that the user has set since stay. The chart allows no token beside the Secret.
            arguments.extend(["--reset-then-reuse-values", "--set", "config.token="].map(str::to_owned));
        }
        let call = helm(arguments, INSTALL_LIMIT);
        call.output().await.map(|_| ())
    }

    /// Returns the commands that install agentk with a token from a file, for a shell.
    pub(super) fn script(
        &self,
        (agent, owner, project): (&AgentName, SecretOwner<'_>, &str),
        token: &Path,
        kas: &str,
    ) -> String {
        let kubectl = format!("kubectl{}", self.context_flag("--context"));
        let (namespace, id) = (&self.namespace, owner.agent);
        let mut text = format!(
            "\
# agentk for the agent {agent} (id {id}) of {project}: run this against its cluster.
{kubectl} create namespace {namespace} --dry-run=client --output yaml |
  {kubectl} apply --server-side --filename -
{kubectl} create secret generic {secret} --namespace {namespace} --from-file {token} \\
  --dry-run=client --output yaml |
  {kubectl} apply --server-side --force-conflicts --filename -
{kubectl} annotate secret {secret} --namespace {namespace} --overwrite \\
  {AGENT_ID}={id} \\
  {GITLAB_URL}={gitlab}
helm",
            gitlab = shell_word(owner.gitlab),
            secret = self.secret(),
            token = shell_word(&format!("token={}", token.display())),
        );
        let mut width = 4;
        let arguments = self.helm_arguments(kas);
        let mut arguments = arguments.iter().peekable();
        while let Some(argument) = arguments.next() {
            let mut part = shell_word(argument);
            // A flag and its value stay on one line.
            if argument.starts_with('-')
                && let Some(value) = arguments.next_if(|value| !value.starts_with('-'))
            {
                // Writing to a string does not fail.
                let _ = write!(part, " {}", shell_word(value));
            }
            if width + part.len() > 115 {
                text.push_str(" \\\n ");
                width = 2;
            }
            width += part.len() + 1;
            let _ = write!(text, " {part}");
        }
        text.push('\n');
        text
    }

    /// Returns the commands that find out why agentk does not connect.
    pub(super) fn diagnosis(&self) -> String {
        let Self { namespace, release, .. } = self;
        format!("`kubectl -n {namespace} get pods`, and `helm -n {namespace} test {release} --logs`")
    }

    fn secret(&self) -> String {
        self.secret.clone().unwrap_or_else(|| format!("{}-token", self.release))
    }

    fn helm_arguments(&self, kas_address: &str) -> Vec<String> {
        let mut arguments = ["upgrade", "--install", &self.release, &self.chart].map(str::to_owned).to_vec();
        arguments.extend(self.version_flags());
        arguments.extend(self.place_flags());
        for file in &self.values {
            arguments.extend(["--values".to_owned(), file.display().to_string()]);
        }
        for value in
            [format!("config.kasAddress={kas_address}"), format!("config.secretName={}", self.secret())]
        {
            arguments.extend(["--set".to_owned(), value]);
        }
        arguments.extend(chart::image_flags(&self.image));
        if let Some(file) = &self.kas_cacert {
            arguments.extend(["--set-file".to_owned(), chart::file_value("config.kasCaCert", file)]);
        }
        arguments
    }

    fn version_flags(&self) -> Vec<String> {
        let version = self.chart_version.iter().cloned();
        version.flat_map(|version| ["--version".to_owned(), version]).collect()
    }

    fn place_flags(&self) -> Vec<String> {
        let mut flags = vec!["--namespace".to_owned(), self.namespace.clone()];
        flags.extend(
            self.kube_context.iter().flat_map(|context| ["--kube-context".to_owned(), context.clone()]),
        );
        flags
    }

    fn kubectl(&self, arguments: &[&str], input: Option<SecretString>) -> ProgramCall {
        let mut arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        arguments.push("--request-timeout=30s".to_owned());
        arguments
            .extend(self.kube_context.iter().flat_map(|context| ["--context".to_owned(), context.clone()]));
        ProgramCall { program: "kubectl", arguments, input, limit: READ_LIMIT }
    }
}

fn helm(arguments: Vec<String>, limit: Duration) -> ProgramCall {
    ProgramCall { program: "helm", arguments, input: None, limit }
}

/// Parses the name of a release or a Secret.
fn object_name(text: &str) -> Result<String, String> {
    let label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    // The limit of Helm for releases.
    let valid = (1..=53).contains(&text.len())
        && text.bytes().all(label)
        && !text.starts_with('-')
        && !text.ends_with('-');
    valid
        .then(|| text.to_owned())
        .ok_or_else(|| "use at most 53 lower-case letters, digits and '-'".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        release: ReleaseOptions,
    }

    fn options(arguments: &str) -> ReleaseOptions {
        Command::try_parse_from(["kas"].into_iter().chain(arguments.split_whitespace())).unwrap().release
    }

    #[test]
    fn script_refers_to_the_token_and_has_no_line_that_is_too_long() {
        let options =
            options("--release shop --values a.yaml --image r.test/agentk:2 --kube-context my-cluster");
        let agent = "production".parse().unwrap();
        let owner = SecretOwner { agent: 7, gitlab: "https://gitlab.test" };
        let script =
            options.script((&agent, owner, "group/shop"), Path::new("my token"), "wss://kas.test:8150");
        let lines: Vec<_> = script.lines().collect();
        assert_eq!(
            lines[0],
            "# agentk for the agent production (id 7) of group/shop: run this against its cluster."
        );
        assert!(
            script
                .contains("create secret generic shop-token --namespace agentk --from-file token='my token'"),
            "{script}"
        );
        assert!(
            script.contains("helm upgrade --install shop deploy/charts/agentk --namespace agentk"),
            "{script}"
        );
        for expected in [
            "annotate secret shop-token --namespace agentk --overwrite agent.gitlab.com/id=7 agent.gitlab.com/gitlab-url=https://gitlab.test",
            "--kube-context my-cluster",
            "--values a.yaml",
            "--set config.kasAddress=wss://kas.test:8150",
            "--set config.secretName=shop-token",
            "--set image.repository=r.test/agentk --set-string image.tag=2",
        ] {
            let joined = script.replace(" \\\n  ", " ");
            assert!(joined.contains(expected), "{expected}: {script}");
        }
        assert!(lines.iter().all(|line| line.len() < 120), "{script}");
    }

    #[test]
    fn comma_of_a_path_does_not_end_a_value_of_helm() {
        let arguments = options("--kas-cacert a,config.token=b.crt").helm_arguments("wss://kas.test");
        assert!(
            arguments
                .ends_with(&["--set-file".to_owned(), r"config.kasCaCert=a\,config.token=b.crt".to_owned()])
        );
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        assert!(object_name("agentk-2").is_ok());
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", &"a".repeat(54)] {
            assert!(object_name(bad).is_err(), "{bad}");
        }
    }
}
