//! The files of a first kas. They are written once.

use std::{
    fs::DirBuilder,
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    time::SystemTime,
};

use access::token::{self, Holder, TokenHash};
use cli::{CliError, CommandResult};
use files::unreadable;
use proto::{AgentName, ServiceName};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use super::{certificates::QuickstartCertificates, host::Host};
use crate::cli::{
    kubeconfig::{KubeconfigText, UserCredential},
    private_file,
};

/// The certificate of the authority, which agentk and kubectl trust.
pub(super) const AUTHORITY: &str = "ca.crt";
/// The token of the agent.
pub(super) const AGENT_TOKEN: &str = "agent-token";
/// The kubeconfig of the caller.
pub(super) const KUBECONFIG: &str = "kubeconfig";
/// The configuration of kas.
pub(super) const CONFIG: &str = "kas.yaml";
/// The options. It is written last: if it exists, the others are complete.
const OPTIONS: &str = "quickstart.yaml";
/// All files, in the order in which they are written.
pub(super) const FILES: [&str; 9] = [
    AUTHORITY,
    "kas.crt",
    "kas.key",
    AGENT_TOKEN,
    "caller-token",
    "identity.yaml",
    CONFIG,
    KUBECONFIG,
    OPTIONS,
];

/// The name of the caller in the identity file.
const CALLER: &str = "me";
/// The names of this machine for itself.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// The address for callers, of this machine only.
const PUBLIC_ADDRESS: &str = "127.0.0.1:8154";

/// The options with which a directory was written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QuickstartOptions {
    /// The name of the agent.
    pub(super) agent: AgentName,
    /// The name or the address at which agentk reaches this machine.
    pub(super) host: Host,
    /// Further names and addresses in the certificate.
    pub(super) other_hosts: Vec<Host>,
}

/// The two tokens.
struct QuickstartTokens {
    agent: SecretString,
    caller: SecretString,
}

impl QuickstartOptions {
    /// Returns the names and addresses of `--host`.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &Host> {
        [&self.host].into_iter().chain(&self.other_hosts)
    }

    /// Returns the names in the certificate of kas, each once.
    fn certificate_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.hosts().map(Host::to_string).collect();
        let own = OWN_NAMES.into_iter().filter(|own| !self.hosts().any(|host| host.to_string() == *own));
        names.extend(own.map(str::to_owned));
        names
    }
}

/// Reads the options of a directory that an earlier run has written completely.
///
/// # Errors
///
/// A file cannot be read, or has been removed since.
pub(super) fn read_options(directory: &Path) -> Result<Option<QuickstartOptions>, CliError> {
    let file = directory.join(OPTIONS);
    let text = match files::read_text(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(CliError::usage(format!("{}: {}", file.display(), unreadable(&error))));
        }
    };
    if let Some(missing) = FILES.iter().map(|name| directory.join(name)).find(|path| !path.exists()) {
        let (missing, directory) = (missing.display(), directory.display());
        let what = format!(
            "{missing} has been removed: remove {directory} with its other files, and run this again"
        );
        return Err(CliError::usage(what));
    }
    Ok(Some(settings::parse(&file, &text)?))
}

/// Writes all files of a directory that has none of them.
pub(super) fn write(directory: &Path, options: &QuickstartOptions) -> CommandResult {
    if let Some(existing) = FILES.iter().map(|name| directory.join(name)).find(|path| path.exists()) {
        return Err(CliError::output(format!(
            "{} exists, and is not changed: remove it, or name another --directory",
            existing.display()
        )));
    }
    let certificates = QuickstartCertificates::new(options.certificate_names(), SystemTime::now())
        .map_err(|error| CliError::defect(format!("no certificate can be made: {error}")))?;
    let tokens = QuickstartTokens { agent: token::new(Holder::Agent), caller: token::new(Holder::Caller) };
    write_contents(directory, options, &certificates, &tokens)
}

fn write_contents(
    directory: &Path,
    options: &QuickstartOptions,
    certificates: &QuickstartCertificates,
    tokens: &QuickstartTokens,
) -> CommandResult {
    let failed = |path: &Path, error: io::Error| CliError::output(format!("{}: {error}", path.display()));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| failed(directory, error))?;
    let create = |name: &str, text: &str| {
        let path = directory.join(name);
        private_file::create(&path, text).map_err(|error| failed(&path, error))
    };
    create(AUTHORITY, &certificates.authority)?;
    create("kas.crt", &certificates.chain)?;
    create("kas.key", &certificates.key)?;
    create(AGENT_TOKEN, tokens.agent.expose_secret())?;
    create("caller-token", tokens.caller.expose_secret())?;
    create("identity.yaml", &identity(&options.agent, tokens))?;
    create(CONFIG, CONFIG_TEXT)?;
    create(KUBECONFIG, &kubeconfig(&options.agent, &tokens.caller, &certificates.authority))?;
    create(OPTIONS, &record(options))
}

fn identity(agent: &AgentName, tokens: &QuickstartTokens) -> String {
    let (agent_hash, caller_hash) = (TokenHash::of(&tokens.agent), TokenHash::of(&tokens.caller));
    format!(
        "\
# The agent and the caller of `kas quickstart`. deploy/identity.example.yaml explains every key.
agents:
  - {{id: 1, name: \"{agent}\", tokens: [\"{agent_hash}\"]}}
callers:
  - {{name: {CALLER}, tokens: [\"{caller_hash}\"], agents: [\"{agent}\"], services: [\"*\"]}}
"
    )
}

fn kubeconfig(agent: &AgentName, caller: &SecretString, authority: &str) -> String {
    KubeconfigText {
        agent: agent.as_str(),
        caller: CALLER,
        server: &format!("https://{PUBLIC_ADDRESS}/agents/{agent}/{}", ServiceName::KUBERNETES),
        authority: Some(authority),
        namespace: None,
        credential: UserCredential::Token(caller),
    }
    .to_string()
}

fn record(options: &QuickstartOptions) -> String {
    let options = serde_saphyr::to_string(options).expect("texts are YAML");
    format!("# The options of `kas quickstart`, which prints the same commands again.\n{options}")
}

/// The configuration of kas. The listener for callers is that of [`PUBLIC_ADDRESS`].
const CONFIG_TEXT: &str = "\
# The configuration of `kas quickstart`. deploy/kas.example.yaml and docs/configuration.md explain every key.
agent:
  listen:
    # agentk connects here, from the cluster.
    address: \":8150\"
    certificate_file: kas.crt
    key_file: kas.key
  kubernetes_api:
    listen:
      # kubectl connects here, from this machine only; \":8154\" is for other machines, too.
      address: \"127.0.0.1:8154\"
      certificate_file: kas.crt
      key_file: kas.key
observability:
  listen:
    # `kas agents` and Prometheus connect here.
    address: \"127.0.0.1:8151\"
identity:
  file: identity.yaml
";

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::app::ValidatedConfig;

    fn options() -> QuickstartOptions {
        let [host, other] = ["192.0.2.7", "localhost"].map(|host| host.parse().unwrap());
        QuickstartOptions { agent: "laptop".parse().unwrap(), host, other_hosts: vec![other] }
    }

    #[test]
    fn written_files_are_private_and_valid_and_are_never_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/kas");
        assert!(read_options(&path).unwrap().is_none());
        write(&path, &options()).unwrap();
        for entry in fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
            assert!(FILES.contains(&entry.file_name().to_str().unwrap()), "{entry:?}");
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), FILES.len());
        assert_eq!(ValidatedConfig::read(&path.join(CONFIG)).unwrap().counts(), (1, 1));
        assert_eq!(read_options(&path).unwrap(), Some(options()));

        let key = fs::read(path.join("kas.key")).unwrap();
        let error = write(&path, &options()).unwrap_err();
        assert_eq!(error.code, 73);
        assert!(error.message.contains("ca.crt exists, and is not changed"), "{}", error.message);
        assert_eq!(fs::read(path.join("kas.key")).unwrap(), key);
    }

    #[test]
    fn incomplete_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(AGENT_TOKEN), "mine").unwrap();
        let message = write(directory.path(), &options()).unwrap_err().message;
        assert!(message.contains("agent-token exists"), "{message}");
        fs::remove_file(directory.path().join(AGENT_TOKEN)).unwrap();

        write(directory.path(), &options()).unwrap();
        fs::remove_file(directory.path().join(AUTHORITY)).unwrap();
        let message = read_options(directory.path()).unwrap_err().message;
        assert!(message.contains("ca.crt has been removed"), "{message}");
    }

    #[test]
    fn certificate_has_each_name_once() {
        assert_eq!(options().certificate_names(), ["192.0.2.7", "localhost", "127.0.0.1", "::1"]);
        assert!(CONFIG_TEXT.contains(&format!("address: \"{PUBLIC_ADDRESS}\"")));
    }
}
