//! The command `kas kubeconfig`.

mod agent;
mod file;
mod server;

use std::{
    fmt::Display,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use access::{Caller, Identity, token::TokenHash};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use clap::{ValueHint, builder::NonEmptyStringValueParser};
use cli::{CliError, CommandResult, print, warn};
use environments_wire::{EnvironmentAgent, GitLabToken};
use files::unreadable;
use proto::{AgentId, ServiceName};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use secrecy::{ExposeSecret as _, SecretString};
use webpki::EndEntityCert;

use self::{
    agent::{ChosenAgent, context_of_gitlab},
    server::ServerUrl,
};
use super::{ConfigFile, environment::EnvironmentName, private_file};
use crate::config::{Config, IdentityConfig};

pub(super) use self::file::{KubeconfigText, UserCredential};

/// Write a kubeconfig for a caller of an agent's cluster
///
/// The context has the name of the agent, or `gitlab-<id>` for one of GitLab, and is the current one. The token must be that of
/// a caller in the identity file, and this caller must be allowed to use the service kubernetes of the agent. With --exec the
/// kubeconfig has no token: kubectl runs `kas login`, with which a person logs in at an OIDC issuer.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Kubeconfig {
    #[command(flatten)]
    config: ConfigFile,
    /// The agent of the cluster. An agent of GitLab has its id here, which `kas agents list` shows
    #[arg(long, value_name = "NAME|ID", required_unless_present = "environment")]
    agent: Option<String>,
    /// The environment that has the agent and the default namespace: of the file `environments.file` or, with
    /// --gitlab-token-file, of GitLab
    ///
    /// If it has several places, --agent and --namespace select one.
    #[arg(long, value_name = "PROJECT:SLUG")]
    environment: Option<EnvironmentName>,
    /// The URL of kas for callers, like `https://kas.example.com:8154`
    ///
    /// The default is the address of the public listener, if its certificate is valid for that address.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    server: Option<ServerUrl>,
    /// Write the host of the agent, of the first pattern in `agent.kubernetes_api.hosts`, in place of its path
    ///
    /// The server is `https://` and this host. With --server, the scheme and the port are those of the URL. `kubectl proxy` and
    /// other clients that drop the path of the server's URL need it.
    #[arg(long)]
    by_host: bool,
    /// The file with the token of the caller; - is standard input
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        required_unless_present_any = ["exec", "gitlab_token_file"],
        conflicts_with_all = ["exec", "gitlab_token_file"]
    )]
    token_file: Option<PathBuf>,
    /// The file with a personal access token of GitLab, for an agent of GitLab; - is standard input
    ///
    /// The token needs the scopes k8s_proxy and, with --environment, read_api. --agent is the id of the agent.
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        conflicts_with_all = ["exec", "caller"]
    )]
    gitlab_token_file: Option<PathBuf>,
    /// The name of an issuer in oidc.issuers: kubectl runs `kas login` to get a token of it
    #[arg(long, value_name = "ISSUER", conflicts_with = "caller", value_parser = NonEmptyStringValueParser::new())]
    exec: Option<String>,
    /// With --exec: the id of the client for `kas login`
    ///
    /// The default is the first audience of the issuer.
    #[arg(long, value_name = "ID", requires = "exec", value_parser = NonEmptyStringValueParser::new())]
    client_id: Option<String>,
    /// With --exec: a further argument for `kas login`, such as --device; can be given several times
    #[arg(long, value_name = "ARGUMENT", requires = "exec", allow_hyphen_values = true)]
    login_arg: Vec<String>,
    /// The expected caller: a token of another caller is refused
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    caller: Option<String>,
    /// The certificate authority of kas (PEM), for the kubeconfig
    ///
    /// The default is the certificate of the public listener, if it is self-signed. Otherwise kubectl trusts the authorities of
    /// its system.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    certificate_authority: Option<PathBuf>,
    /// The default namespace of kubectl
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    namespace: Option<String>,
    /// The file to write, with mode 0600; an existing file is not overwritten
    ///
    /// The default is standard output.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  kas kubeconfig --config kas.yaml --agent production --token-file ./token \\
    --server https://kas.example.com:8154 --output production.kubeconfig
  kubectl --kubeconfig production.kubeconfig get pods -A

  kas kubeconfig --config kas.yaml --environment shop/web:production \\
    --token-file ./token

  For a user of GitLab, with the environment of GitLab:
  kas kubeconfig --config kas.yaml --environment shop/web:production \\
    --gitlab-token-file ./pat --server https://kas.example.com:8154

  For kubectl proxy and other clients that need a server without a path:
  kas kubeconfig --config kas.yaml --agent production --token-file ./token \\
    --by-host --output production.kubeconfig

  For people who log in at the issuer dex of oidc.issuers:
  kas kubeconfig --config kas.yaml --agent production --exec dex \\
    --server https://kas.example.com:8154 --output production.kubeconfig

  Add it to an existing kubeconfig:
  KUBECONFIG=~/.kube/config:production.kubeconfig \\
    kubectl config view --flatten > merged.kubeconfig

Exit codes:
  0   written
  64  the configuration or another input is invalid
  73  the kubeconfig cannot be written
  77  the token is not of a caller, or its caller may not use the agent";

impl Kubeconfig {
    /// Checks the permissions of the caller and writes the kubeconfig.
    pub(super) fn run(self) -> CommandResult {
        let config = Config::read(&self.config.path)?;
        if let Some(file) = &self.gitlab_token_file {
            let (agent, namespace, token) = self.gitlab_place(&config, file)?;
            let name = context_of_gitlab(agent);
            let token = UserCredential::Token(&token);
            return self.write(&config, (name.as_str(), &agent), "gitlab", namespace.as_deref(), token);
        }
        let Some(IdentityConfig { file: identity_file }) = &config.identity else {
            return Err(CliError::usage(
                "the configuration has no identity file: the agents of GitLab need --gitlab-token-file",
            ));
        };
        let identity = Identity::read(&identity_file.value)?;
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let place = self.environment.as_ref().map(|name| self.find_place(&config, name, None)).transpose()?;
        let agent = place.as_ref().map(|place| &place.agent).or(self.agent.as_ref());
        let agent = agent.expect("clap requires the agent or the environment");
        let namespace = self.namespace.as_deref().or_else(|| place.as_ref().map(|place| &*place.namespace));
        let found = ChosenAgent::find(&identity, agent, config.gitlab.is_some())?;
        let agent = found.ok_or_else(|| {
            let file = identity_file.value.display();
            let hint = config.gitlab.as_ref().map_or("", |_| "; of an agent of GitLab, write the id");
            CliError::usage(format!("there is no agent {agent:?} in {file}{hint}"))
        })?;
        let kubernetes: ServiceName = ServiceName::KUBERNETES.parse().expect("it is a service name");
        let login = self
            .exec
            .as_deref()
            .map(|issuer| self.login_arguments(&config, &identity, issuer))
            .transpose()?;
        let (caller, credential) = match (&token, &self.exec, &login) {
            (Some(token), ..) => {
                let caller = caller_of(&identity, token, self.caller.as_deref());
                let caller = caller.map_err(CliError::forbidden)?;
                agent.check_caller(caller, &kubernetes)?;
                (caller.name(), UserCredential::Token(token))
            }
            (None, Some(issuer), Some(login)) => {
                agent.check_issuer(&identity, issuer, &kubernetes)?;
                (&**issuer, UserCredential::Exec(login))
            }
            _ => return Err(CliError::usage("either --token-file or --exec is needed")),
        };

        self.write(&config, (agent.name.as_str(), agent.in_path()), caller, namespace, credential)
    }

    /// Returns the agent of GitLab, the namespace, and the credential for kas.
    fn gitlab_place(
        &self,
        config: &Config,
        file: &Path,
    ) -> Result<(AgentId, Option<String>, SecretString), CliError> {
        if config.gitlab.is_none() {
            return Err(CliError::usage(
                "the configuration has no section gitlab, which --gitlab-token-file needs",
            ));
        }
        let token = GitLabToken::Personal(read_token(file)?);
        let place = self.environment.as_ref().map(|name| self.find_place(config, name, Some(&token)));
        let place = place.transpose()?;
        let agent = place.as_ref().map(|place| &place.agent).or(self.agent.as_ref());
        let agent = agent.expect("clap requires the agent or the environment");
        let Ok(agent) = agent.parse::<AgentId>() else {
            return Err(CliError::usage(format!(
                "{agent:?} is not the id of an agent of GitLab: the environment is of the file, or --agent is a name"
            )));
        };
        let (GitLabToken::Personal(secret) | GitLabToken::Job(secret)) = &token;
        let credential = SecretString::from(format!("pat:{agent}:{}", secret.expose_secret()));
        Ok((agent, self.namespace.clone().or_else(|| place.map(|place| place.namespace)), credential))
    }

    /// Returns the place of an environment that --agent and --namespace select.
    fn find_place(
        &self,
        config: &Config,
        name: &EnvironmentName,
        token: Option<&GitLabToken>,
    ) -> Result<EnvironmentAgent, CliError> {
        let found = name.find((&self.config.path, config), token)?;
        name.choose(found, self.agent.as_deref(), self.namespace.as_deref()).map_err(CliError::usage)
    }

    /// Writes the kubeconfig for an agent, which has this name in the file and this one in the path.
    fn write(
        &self,
        config: &Config,
        (agent, in_path): (&str, &dyn Display),
        caller: &str,
        namespace: Option<&str>,
        credential: UserCredential<'_>,
    ) -> CommandResult {
        let listen = &config.agent.kubernetes_api.listen;
        let own = match &listen.certificate_file {
            Some(file) => certificates(&file.value).map_err(CliError::usage)?,
            None => Vec::new(),
        };
        let server = match &self.server {
            _ if self.by_host => self.host_url(config, in_path)?,
            Some(server) => server.agent_url(in_path),
            None => ServerUrl::from_listener(listen.address, own.first())
                .map_err(CliError::usage)?
                .agent_url(in_path),
        };
        let is_secure = server.starts_with("https://");
        let trusted = match &self.certificate_authority {
            Some(file) => certificates(file).map_err(CliError::usage)?,
            None => own_authority(own),
        };
        if !is_secure {
            warn("kubectl sends no token over plain http, and kas will refuse its requests");
        }

        let text = KubeconfigText {
            agent,
            caller,
            server: &server,
            authority: pem(&trusted).as_deref().filter(|_| is_secure),
            namespace,
            credential,
        }
        .to_string();
        match &self.output {
            Some(file) => write(file, &text),
            None => print(&text),
        }
    }

    /// Returns the URL of the host of an agent.
    fn host_url(&self, config: &Config, agent: &dyn Display) -> Result<String, CliError> {
        let Some(pattern) = config.agent.kubernetes_api.hosts.first() else {
            let file = self.config.path.display();
            return Err(CliError::usage(format!("--by-host needs agent.kubernetes_api.hosts in {file}")));
        };
        let host = pattern.host_of(agent);
        match &self.server {
            None => Ok(format!("https://{host}")),
            Some(server) => server
                .with_host(&host)
                .ok_or_else(|| CliError::usage("with --by-host, the URL of --server may not have a path")),
        }
    }

    /// Returns the arguments with which kubectl runs `kas` to log in at the issuer with this name. They name the claims that kas needs:
    /// `kas login` knows the issuer, and asks for their scopes.
    fn login_arguments(
        &self,
        config: &Config,
        identity: &Identity,
        name: &str,
    ) -> Result<Vec<String>, CliError> {
        let issuer =
            config.oidc.issuers.iter().find(|issuer| issuer.name.value == name).ok_or_else(|| {
                CliError::usage(format!(
                    "there is no issuer {name:?} in oidc.issuers of {}",
                    self.config.path.display()
                ))
            })?;
        let client = self.client_id.clone().or_else(|| issuer.audiences.value.first().cloned());
        let client =
            client.ok_or_else(|| CliError::usage("--client-id is needed: the issuer has no audiences"))?;
        let mut arguments: Vec<_> =
            ["login", "--issuer", &issuer.issuer.value, "--client-id", &client].map(str::to_owned).into();
        match &issuer.scopes {
            Some(scopes) => arguments.extend(["--scopes".to_owned(), scopes.value.join(" ")]),
            None => {
                let mut claims = identity.oidc_claims(name);
                claims.extend([&*issuer.username_claim].into_iter().chain(issuer.groups_claim.as_deref()));
                arguments.extend(claims.into_iter().map(|claim| format!("--claim={claim}")));
            }
        }
        arguments.extend(self.login_arg.iter().cloned());
        Ok(arguments)
    }
}

/// Returns the caller of a token. `expected` is the name that the caller must have.
fn caller_of<'a>(
    identity: &'a Identity,
    token: &SecretString,
    expected: Option<&str>,
) -> Result<&'a Caller, String> {
    let Some(grant) = identity.grant(&TokenHash::of(token)) else {
        return Err(match identity.agent(token) {
            Some(agent) => format!(
                "the token is that of the agent {}; create one for a caller with `kas token new caller`",
                agent.name
            ),
            None => "the token is not of a caller in the identity file: create one with `kas token new caller`, and put its hash \
                     there"
                .to_owned(),
        });
    };

    match expected {
        Some(name) if name != grant.caller.name() => {
            Err(format!("the token is that of the caller {}, not of {name}", grant.caller.name()))
        }
        _ => Ok(&grant.caller),
    }
}

pub(super) fn read_token(file: &Path) -> Result<SecretString, CliError> {
    let read = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        files::read_text(file)
    };
    let error = |what: String| CliError::usage(format!("the token file {}: {what}", file.display()));
    let text = read.map_err(|cause| error(unreadable(&cause)))?;
    match text.trim() {
        "" => Err(error("the file has no token".to_owned())),
        token if token.contains(char::is_whitespace) => Err(error(
            "the file has more than a token: of the output of `kas token new`, it must have only the text after \"token:\""
                .to_owned(),
        )),
        token => Ok(token.into()),
    }
}

/// Creates the file of the kubeconfig.
fn write(file: &Path, text: &str) -> CommandResult {
    private_file::create(file, text).map_err(|error| {
        let what = match error.kind() {
            ErrorKind::AlreadyExists => {
                "the file exists, and may have other contexts; remove it, or write another file".to_owned()
            }
            _ => error.to_string(),
        };
        CliError::output(format!("{}: {what}", file.display()))
    })
}

/// Reads the certificates of a PEM file. There is at least one.
pub(super) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = files::read(file).map_err(|error| format!("{}: {}", file.display(), unreadable(&error)))?;
    let certificates =
        CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if certificates.is_empty() {
        return Err(format!("{}: holds no PEM certificate", file.display()));
    }

    Ok(certificates)
}

/// Returns the self-signed certificates of a chain: no system trusts them by default.
fn own_authority(mut chain: Vec<CertificateDer<'static>>) -> Vec<CertificateDer<'static>> {
    chain.retain(|certificate| {
        EndEntityCert::try_from(certificate).is_ok_and(|it| it.issuer() == it.subject())
    });
    chain
}

/// Encodes certificates as PEM, or returns `None` if there are none. Their file may also have a private key, which is not copied.
pub(super) fn pem(certificates: &[CertificateDer<'_>]) -> Option<String> {
    /// The length of a line (RFC 7468 section 2).
    const LINE: usize = 64;
    let block = |certificate: &CertificateDer<'_>| {
        let encoded = STANDARD.encode(certificate);
        let lines = encoded.as_bytes().chunks(LINE).map(|line| String::from_utf8_lossy(line) + "\n");
        format!("-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n", lines.collect::<String>())
    };
    (!certificates.is_empty()).then(|| certificates.iter().map(block).collect())
}

#[cfg(test)]
mod tests {
    use access::token::{self, Holder};
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    #[test]
    fn token_must_be_of_the_expected_caller() {
        let [agent, caller, stranger] = [Holder::Agent, Holder::Caller, Holder::Caller].map(token::new);
        let text = format!(
            "agents: [{{id: 1, name: prod, tokens: ['{}']}}]\n\
             callers: [{{name: ci, tokens: ['{}'], agents: [prod], services: ['*']}}]",
            TokenHash::of(&agent),
            TokenHash::of(&caller)
        );
        let identity = Identity::parse(Path::new("id.yaml"), &text).unwrap();
        assert_eq!(caller_of(&identity, &caller, None).unwrap().name(), "ci");
        assert_eq!(caller_of(&identity, &caller, Some("ci")).unwrap().name(), "ci");
        let error = |token, meant| caller_of(&identity, token, meant).unwrap_err();
        assert_eq!(error(&caller, Some("me")), "the token is that of the caller ci, not of me");
        assert!(error(&agent, None).starts_with("the token is that of the agent prod"));
        assert!(error(&stranger, None).starts_with("the token is not of a caller"));
    }

    fn named(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    #[test]
    fn only_self_signed_certificates_are_trusted() {
        let mut root = named("root");
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = root.self_signed(&key).unwrap();
        let leaf = named("leaf").signed_by(&KeyPair::generate().unwrap(), &Issuer::new(root, key)).unwrap();
        let lonely = named("lonely").self_signed(&KeyPair::generate().unwrap()).unwrap();

        let of = |chain: &[&rcgen::Certificate]| {
            own_authority(chain.iter().map(|certificate| certificate.der().clone()).collect())
        };
        assert_eq!(of(&[&lonely]), [lonely.der().clone()]);
        assert_eq!(of(&[&leaf, &authority]), [authority.der().clone()]);
        assert!(of(&[&leaf]).is_empty());
    }

    #[test]
    fn private_key_is_not_copied() {
        let key = KeyPair::generate().unwrap();
        let certificate = named("kas").self_signed(&key).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("both.pem");
        std::fs::write(&file, key.serialize_pem() + &certificate.pem()).unwrap();
        let text = pem(&certificates(&file).unwrap()).unwrap();
        assert_eq!(text, certificate.pem().replace('\r', ""));
        assert!(pem(&[]).is_none());

        std::fs::write(&file, key.serialize_pem()).unwrap();
        assert!(certificates(&file).unwrap_err().ends_with("both.pem: holds no PEM certificate"));
    }
}
