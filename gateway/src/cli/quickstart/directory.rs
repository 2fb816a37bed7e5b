//! The files of a first kas. They are written once.

use std::{
    fs::{self, DirBuilder},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
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
/// The certificate of kas and that of the authority.
const CERTIFICATE: &str = "kas.crt";
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
    CERTIFICATE,
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

/// Checks the owner and the mode of the directory and its files, as far as they exist.
///
/// # Errors
///
/// Another user owns one of them or may write to it, or its metadata cannot be read.
pub(super) fn check_owner(directory: &Path) -> CommandResult {
    let own_user = rustix::process::geteuid().as_raw();
    let files = FILES.iter().map(|name| directory.join(name));
    for path in [directory.to_owned()].into_iter().chain(files) {
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(CliError::usage(format!("{}: {error}", path.display()))),
        };
        if let Some(problem) = owner_problem(metadata.uid(), metadata.mode(), own_user) {
            return Err(CliError::usage(format!("{} {problem}", path.display())));
        }
    }
    Ok(())
}

/// Returns why a file of `user` with `mode` is not trusted, and the remedy.
fn owner_problem(user: u32, mode: u32, own_user: u32) -> Option<&'static str> {
    if user != own_user {
        return Some("belongs to another user, who could change it: name another --directory");
    }
    let is_writable = mode & 0o022 != 0;
    is_writable.then_some("can be changed by other users: run chmod go-w for it, or name another --directory")
}

/// Returns the time at which the certificate of kas expires.
///
/// # Errors
///
/// The certificate cannot be read.
pub(super) fn expiry(directory: &Path) -> Result<SystemTime, CliError> {
    let file = directory.join(CERTIFICATE);
    let text = files::read_text(&file)
        .map_err(|error| CliError::usage(format!("{}: {}", file.display(), unreadable(&error))))?;
    let expiry = kas_listen::tls::expiry(&text).and_then(|seconds| u64::try_from(seconds).ok());
    let time = expiry.and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    time.ok_or_else(|| CliError::usage(format!("{} has no certificate", file.display())))
}

/// Returns the names of the files that exist or not.
fn files_that(exist: bool, directory: &Path) -> Vec<&'static str> {
    FILES.into_iter().filter(|name| directory.join(name).exists() == exist).collect()
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
    let missing = files_that(false, directory);
    if !missing.is_empty() {
        return Err(CliError::usage(format!(
            "{} has no {} any more: remove it with its other files, and run this again",
            directory.display(),
            missing.join(", ")
        )));
    }
    Ok(Some(settings::parse(&file, &text)?))
}

/// Writes all files of a directory that has none of them.
pub(super) fn write(directory: &Path, options: &QuickstartOptions) -> CommandResult {
    let existing = files_that(true, directory);
    if !existing.is_empty() {
        return Err(CliError::output(format!(
            "{} has files that are not changed: remove {}, or name another --directory",
            directory.display(),
            existing.join(", ")
        )));
    }
    let certificates = QuickstartCertificates::new(options.certificate_names(), SystemTime::now())
        .map_err(|error| CliError::defect(format!("no certificate can be made: {error}")))?;
    let tokens = QuickstartTokens { agent: token::new(Holder::Agent), caller: token::new(Holder::Caller) };
    write_contents(directory, options, &certificates, &tokens)
}

/// Writes the files. If one of them cannot be written, those before it are removed, so that the next run can write all.
fn write_contents(
    directory: &Path,
    options: &QuickstartOptions,
    certificates: &QuickstartCertificates,
    tokens: &QuickstartTokens,
) -> CommandResult {
    let failed = |path: &Path, error: io::Error| CliError::output(format!("{}: {error}", path.display()));
    let is_new = !directory.exists();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| failed(directory, error))?;
    // Another user may have made it meanwhile.
    check_owner(directory)?;
    let (identity, options_text) = (identity(&options.agent, tokens), record(options));
    let kubeconfig = kubeconfig(&options.agent, &tokens.caller, &certificates.authority);
    let texts: [&str; FILES.len()] = [
        &certificates.authority,
        &certificates.chain,
        &certificates.key,
        tokens.agent.expose_secret(),
        tokens.caller.expose_secret(),
        &identity,
        CONFIG_TEXT,
        &kubeconfig,
        &options_text,
    ];
    let mut written: Vec<PathBuf> = Vec::new();
    for (name, text) in FILES.into_iter().zip(texts) {
        let path = directory.join(name);
        if let Err(error) = private_file::create(&path, text) {
            remove(&written, is_new.then_some(directory));
            return Err(failed(&path, error));
        }
        written.push(path);
    }
    Ok(())
}

/// Removes the files and the directory of a run that has failed. Its own error is the one to report.
fn remove(files: &[PathBuf], directory: Option<&Path>) {
    for file in files {
        let _ = fs::remove_file(file);
    }
    if let Some(directory) = directory {
        let _ = fs::remove_dir(directory);
    }
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
    # agentk connects here, from the cluster: on all interfaces of this machine.
    address: \":8150\"
    # agentk of kas only, and not that of GitLab.
    protocols: [kas-tunnel.v1]
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
    use std::os::unix::fs::PermissionsExt as _;

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
        assert!(error.message.contains("remove ca.crt, kas.crt, kas.key, "), "{}", error.message);
        assert_eq!(fs::read(path.join("kas.key")).unwrap(), key);
    }

    #[test]
    fn incomplete_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(AGENT_TOKEN), "mine").unwrap();
        let message = write(directory.path(), &options()).unwrap_err().message;
        assert!(message.contains("has files that are not changed: remove agent-token, or"), "{message}");
        fs::remove_file(directory.path().join(AGENT_TOKEN)).unwrap();

        write(directory.path(), &options()).unwrap();
        fs::remove_file(directory.path().join(AUTHORITY)).unwrap();
        let message = read_options(directory.path()).unwrap_err().message;
        assert!(message.contains("has no ca.crt any more"), "{message}");
    }

    #[test]
    fn failed_write_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let names = || {
            fs::read_dir(directory.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        };
        fs::write(directory.path().join(KUBECONFIG), "mine").unwrap();
        let certificates =
            QuickstartCertificates::new(options().certificate_names(), SystemTime::now()).unwrap();
        let tokens =
            QuickstartTokens { agent: token::new(Holder::Agent), caller: token::new(Holder::Caller) };
        let error = write_contents(directory.path(), &options(), &certificates, &tokens).unwrap_err();
        assert!(error.code == 73 && error.message.contains("/kubeconfig: "), "{}", error.message);
        assert_eq!(names().collect::<Vec<_>>(), [KUBECONFIG]);
        assert_eq!(fs::read_to_string(directory.path().join(KUBECONFIG)).unwrap(), "mine");

        fs::remove_file(directory.path().join(KUBECONFIG)).unwrap();
        write(directory.path(), &options()).unwrap();
        assert_eq!(names().count(), FILES.len());
    }

    #[test]
    fn directory_that_others_can_change_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kas");
        check_owner(&path).unwrap();
        write(&path, &options()).unwrap();
        check_owner(&path).unwrap();
        for (name, mode) in [("kubeconfig", 0o620), (".", 0o702)] {
            let file = path.join(name);
            let before = fs::metadata(&file).unwrap().permissions();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let message = check_owner(&path).unwrap_err().message;
            assert!(message.contains("can be changed by other users"), "{name}: {message}");
            fs::set_permissions(&file, before).unwrap();
        }
        assert!(owner_problem(1001, 0o100_600, 1000).unwrap().starts_with("belongs to another user"));
        assert_eq!(owner_problem(1000, 0o100_644, 1000), None);
    }

    #[test]
    fn expiry_is_that_of_the_certificate() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), &options()).unwrap();
        let day = Duration::from_secs(24 * 3600);
        let (now, end) = (SystemTime::now(), expiry(directory.path()).unwrap());
        assert!(end > now + 364 * day && end < now + 366 * day, "{end:?}");
        fs::write(directory.path().join(CERTIFICATE), "no certificate").unwrap();
        assert!(expiry(directory.path()).unwrap_err().message.contains("has no certificate"));
    }

    #[test]
    fn certificate_has_each_name_once() {
        assert_eq!(options().certificate_names(), ["192.0.2.7", "localhost", "127.0.0.1", "::1"]);
        assert!(CONFIG_TEXT.contains(&format!("address: \"{PUBLIC_ADDRESS}\"")));
    }
}
