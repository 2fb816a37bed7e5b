//! `kas kubeconfig`: what kubectl needs to reach a cluster through kas.

mod file;
mod server;
mod trust;

use std::{
    fs::OpenOptions,
    io::{ErrorKind, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use clap::{ValueHint, builder::NonEmptyStringValueParser};
use proto::ServiceName;
use secrecy::SecretString;

use self::{
    file::Entry,
    server::Server,
    trust::{certificates, own_authority, pem},
};
use super::{
    ConfigFile,
    outcome::{Outcome, Refusal, say, warn},
};
use crate::{
    config::{Config, unreadable},
    identity::{Caller, Identity},
};

/// Write a kubeconfig for a caller of an agent's cluster
///
/// The context, which is the current one, has the agent's name. The token must be one of the identity file's callers, and
/// its caller must be allowed to use the agent's service kubernetes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Kubeconfig {
    #[command(flatten)]
    config: ConfigFile,
    /// The agent whose cluster it is for
    #[arg(long, value_name = "NAME|ID")]
    agent: String,
    /// Where callers reach kas, like `https://kas.example.com:8154`
    ///
    /// Without it: the address of the configuration's public listener, if its certificate is valid for that.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    server: Option<Server>,
    /// File that contains the caller's token; - is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: PathBuf,
    /// The caller whose token it should be: refuse another's
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    caller: Option<String>,
    /// Certificates (PEM) to trust for kas, put into the kubeconfig
    ///
    /// Without it: the public listener's certificate, if it is self-signed; otherwise kubectl trusts what its system
    /// trusts.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    certificate_authority: Option<PathBuf>,
    /// The namespace that kubectl uses unless told otherwise
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    namespace: Option<String>,
    /// Where to write it, for its owner only (mode 0600); a file that exists is left alone
    ///
    /// Without it: standard output.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  kas kubeconfig --config kas.yaml --agent production --token-file ./token \\
    --server https://kas.example.com:8154 --output production.kubeconfig
  kubectl --kubeconfig production.kubeconfig get pods -A

  Add it to the kubeconfig that is there:
  KUBECONFIG=~/.kube/config:production.kubeconfig \\
    kubectl config view --flatten > merged.kubeconfig

Exit codes:
  0   written
  64  the configuration, or something else that was given, cannot be used
  73  the kubeconfig cannot be written
  77  the token is no caller's, or its caller may not use the agent";

impl Kubeconfig {
    /// Checks that what it writes will work, and writes it.
    pub(super) fn run(self) -> Outcome {
        let config = Config::read(&self.config.path)?;
        let identity = Identity::read(&config.identity.file.value)?;
        let token = read_token(&self.token_file)?;
        let id = identity.find(&self.agent).ok_or_else(|| {
            let file = config.identity.file.value.display();
            Refusal::usage(format!("there is no agent {:?} in {file}", self.agent))
        })?;
        let caller = caller_of(&identity, &token, self.caller.as_deref()).map_err(Refusal::forbidden)?;
        let agent = identity.name(id).expect("it was found");
        let kubernetes: ServiceName = ServiceName::KUBERNETES.parse().expect("it is a service name");
        if !caller.may_use(id) {
            return Err(Refusal::forbidden(format!("caller {} may not use the agent {agent}", caller.name)));
        }
        if !caller.may_ask(&kubernetes) {
            let what = format!("caller {} may not use the service {kubernetes}", caller.name);
            return Err(Refusal::forbidden(what));
        }

        let listen = &config.agent.kubernetes_api.listen;
        let own = match &listen.certificate_file {
            Some(file) => certificates(&file.value).map_err(Refusal::usage)?,
            None => Vec::new(),
        };
        let server = match self.server {
            Some(server) => server,
            None => Server::of(listen.address, own.first()).map_err(Refusal::usage)?,
        };
        let trusted = match &self.certificate_authority {
            Some(file) => certificates(file).map_err(Refusal::usage)?,
            None => own_authority(own),
        };
        if !server.is_secure() {
            warn("kubectl sends no token over plain http: kas will refuse its requests");
        }

        let text = Entry {
            agent: agent.as_str(),
            caller: &caller.name,
            server: &server.of_agent(agent),
            authority: pem(&trusted).as_deref().filter(|_| server.is_secure()),
            namespace: self.namespace.as_deref(),
            token: &token,
        }
        .to_string();
        match &self.output {
            Some(file) => write(file, &text),
            None => say(&text),
        }
    }
}

/// The caller who holds a token, and who is the one that was meant.
fn caller_of<'a>(
    identity: &'a Identity,
    token: &SecretString,
    meant: Option<&str>,
) -> Result<&'a Caller, String> {
    let Some(grant) = identity.grant(token) else {
        return Err(match identity.agent(token) {
            Some((agent, _)) => {
                let agent = identity.name(agent).map_or_else(|| agent.to_string(), ToString::to_string);
                format!("the token is the agent {agent}'s; callers have their own: `kas token new caller`")
            }
            None => "the token is not one of a caller in the identity file: make one with `kas token new caller`, and put \
                     its hash there"
                .to_owned(),
        });
    };

    match meant {
        Some(name) if name != grant.caller.name => {
            Err(format!("the token is of the caller {}, not of {name}", grant.caller.name))
        }
        _ => Ok(&grant.caller),
    }
}

fn read_token(file: &Path) -> Result<SecretString, Refusal> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text))
    };
    let refusal = |what: String| Refusal::usage(format!("the token file {}: {what}", file.display()));
    read.map_err(|error| refusal(unreadable(&error)))?;
    match text.trim() {
        "" => Err(refusal("it holds no token".to_owned())),
        token if token.contains(char::is_whitespace) => Err(refusal(
            "it holds more than a token: of what `kas token new` prints, only what follows \"token:\" belongs \
             there"
                .to_owned(),
        )),
        token => Ok(token.into()),
    }
}

/// Makes a file that nobody else can read, at any time.
fn write(file: &Path, text: &str) -> Outcome {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| {
            let what = match error.kind() {
                ErrorKind::AlreadyExists => {
                    "the file exists, and may hold other contexts; remove it, or write another".to_owned()
                }
                _ => error.to_string(),
            };
            Refusal::output(format!("{}: {what}", file.display()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::{self, Holder, TokenHash};

    #[test]
    fn a_token_is_its_callers_and_nobody_elses() {
        let [agent, caller, stranger] = [Holder::Agent, Holder::Caller, Holder::Caller].map(token::new);
        let text = format!(
            "agents: [{{id: 1, name: prod, tokens: ['{}']}}]\n\
             callers: [{{name: ci, tokens: ['{}'], agents: [prod], services: ['*']}}]",
            TokenHash::of(&agent),
            TokenHash::of(&caller)
        );
        let identity = Identity::parse(Path::new("id.yaml"), &text).unwrap();
        assert_eq!(caller_of(&identity, &caller, None).unwrap().name, "ci");
        assert_eq!(caller_of(&identity, &caller, Some("ci")).unwrap().name, "ci");
        let error = |token, meant| caller_of(&identity, token, meant).unwrap_err();
        assert_eq!(error(&caller, Some("me")), "the token is of the caller ci, not of me");
        assert!(error(&agent, None).starts_with("the token is the agent prod's"));
        assert!(error(&stranger, None).starts_with("the token is not one of a caller"));
    }
}
