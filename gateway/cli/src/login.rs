//! The commands `kas login` and `kas logout`.

mod browser;
mod cache;
mod callback;
mod device;
mod exec_credential;

use std::{
    env,
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::{ValueEnum, ValueHint, builder::NonEmptyStringValueParser};
use files::unreadable;
use oidc::{
    EndpointUrl, EndpointUrlError, IssuerClient, LoginError, OauthClient, ProviderMetadata, Tokens,
    scopes_for,
};
use secrecy::SecretString;

use self::{
    cache::TokenCache,
    callback::RedirectUri,
    exec_credential::{ExecInfo, expiration},
};
use crate::{CliError, CommandResult, print};

/// Log in at an OIDC issuer, for kubectl or by hand
///
/// kubectl runs this command if the kubeconfig has it as its exec plugin, which `kas kubeconfig --exec` writes. It prints the token
/// for kas as an ExecCredential. By hand it only logs in. Tokens are kept in the cache directory of the user, where only the user
/// may read them, and are refreshed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Login {
    /// The URL of the issuer, as in oidc.issuers of the configuration of kas
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, value_parser = issuer_url)]
    issuer: String,
    /// The id of the client that the issuer knows for this command
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    client_id: String,
    /// The file with the secret of the client, if the issuer demands one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    client_secret_file: Option<PathBuf>,
    /// Log in with a code on another device (RFC 8628)
    #[arg(long, conflicts_with = "browser")]
    device: bool,
    /// Log in with the browser of this machine (authorization code with PKCE)
    ///
    /// Without --device and --browser, the browser is used if this machine has a display, or if the issuer has no device flow.
    #[arg(long)]
    browser: bool,
    /// The audience that the issuer should put into the token, for issuers with this parameter
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    audience: Option<String>,
    /// A claim that kas needs; can be given several times
    ///
    /// kas login asks for the scopes of these claims, as far as the issuer has them.
    #[arg(long = "claim", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    claims: Vec<String>,
    /// The scopes, separated by spaces, in place of those of the claims
    ///
    /// The default is openid, the scopes of the claims, and offline_access, as far as the issuer has them.
    #[arg(long, value_name = "SCOPES", overrides_with = "scopes", value_parser = NonEmptyStringValueParser::new())]
    scopes: Option<String>,
    /// The token of the issuer that kas gets
    #[arg(long, value_enum, value_name = "KIND", default_value_t = RequestedToken::Id)]
    token: RequestedToken,
    /// The URL at which this command waits for the browser; without a port, a free one is used
    #[arg(long, value_name = "URL", default_value = "http://localhost/callback")]
    redirect_uri: RedirectUri,
    /// The certificate authority of the issuer (PEM)
    ///
    /// The default is the authorities of the system.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ca_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RequestedToken {
    /// The ID token
    Id,
    /// The access token, which must be a JWT
    Access,
}

/// Remove the tokens that `kas login` has cached
///
/// The issuer is not asked to revoke them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  kas logout")]
pub struct Logout {}

const EXAMPLES: &str = "\
Examples:
  kas login --issuer https://dex.example.com --client-id kas
  kas login --issuer https://dex.example.com --client-id kas --device

Exit codes:
  0   logged in
  64  an option or a file is invalid
  69  the issuer does not respond, or the login took too long
  73  the cache directory cannot be written
  77  the issuer refused the login";

/// The shortest remaining life of a token that is used.
const MARGIN: Duration = Duration::from_secs(60);

impl Login {
    /// Gets a token from the cache or from the issuer.
    pub fn run(self) -> CommandResult {
        let exec = ExecInfo::from_env(env::var("KUBERNETES_EXEC_INFO").ok().as_deref())?;
        let secret = self.client_secret_file.as_deref().map(read_secret).transpose()?;
        let http = IssuerClient::new(self.ca_file.clone());
        http.check().map_err(|error| CliError::usage(error.to_string()))?;
        let cache = TokenCache::open(&self.cache_key())?;

        let tokens = match cache.read().filter(|tokens| tokens.is_valid(now() + MARGIN)) {
            Some(tokens) => tokens,
            None => {
                let _lock = cache.lock()?;
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("the operating system lets a runtime start");
                // Another process may have logged in while this one waited for the lock.
                match cache.read() {
                    Some(tokens) if tokens.is_valid(now() + MARGIN) => tokens,
                    cached => {
                        let tokens = runtime.block_on(self.get_tokens(http, secret, cached))?;
                        cache.write(&tokens)?;
                        tokens
                    }
                }
            }
        };
        match exec {
            Some(exec) => print(&exec.credential(&tokens)),
            None => print(&format!("logged in; the token is valid until {}\n", expiration(&tokens))),
        }
    }

    /// Refreshes the cached tokens, or lets the user log in.
    async fn get_tokens(
        &self,
        http: IssuerClient,
        secret: Option<SecretString>,
        cached: Option<Tokens>,
    ) -> Result<Tokens, CliError> {
        let metadata = ProviderMetadata::fetch(&http, &self.issuer).await;
        let metadata = metadata.map_err(|error| CliError::unavailable(error.to_string()))?;
        let issuer = self.issuer.clone();
        let (source, client_id) = (Arc::new(http), self.client_id.clone());
        let client = OauthClient::new(source, issuer, client_id, secret, &metadata, self.token.into());
        let client = client
            .ok_or_else(|| CliError::usage("the issuer has no token_endpoint: nobody can log in there"))?;
        if let Some(refresh) = cached.as_ref().and_then(|tokens| tokens.refresh_token.as_ref()) {
            match client.refresh(refresh).await {
                Ok(tokens) => return Ok(tokens),
                // The session has ended, for example: the user has to log in again.
                Err(LoginError::Refused(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let device = metadata.device_authorization_endpoint.as_ref();
        let scopes = self.scopes.clone();
        let scopes =
            scopes.unwrap_or_else(|| scopes_for(self.claims.iter().map(|claim| &**claim), &metadata));
        let parameters = self.parameters(scopes.clone());
        let tokens = match (device, metadata.authorization_endpoint.as_ref()) {
            (Some(endpoint), _) if self.device || !(self.browser || has_display()) => {
                let login = device::log_in(&client, endpoint, &parameters).await;
                // RFC 8628 section 3.1 and RFC 6749 section 5.2: the client may not use this flow, which the user did not choose.
                if let Err(LoginError::Refused(error)) = &login
                    && !self.device
                    && error.error == "unauthorized_client"
                {
                    let what = "this machine has no display, so that kas login tried a login on another device; choose --browser";
                    return Err(CliError::forbidden(format!(
                        "the issuer refused the login: {error}; {what}"
                    )));
                }
                login
            }
            (_, Some(endpoint)) if !self.device => {
                browser::log_in(&client, endpoint, &self.redirect_uri, &parameters).await
            }
            _ => {
                let what = "the issuer does not support this login: choose --browser or --device";
                return Err(CliError::usage(what));
            }
        };
        let tokens = tokens.map_err(CliError::from)?;
        let missing = tokens.missing(&self.claims);
        if !missing.is_empty() {
            let missing = missing.join(" and ");
            print_notice(&format!(
                "kas login: the token has no {missing}, which kas needs; the scopes were {scopes}. If the issuer has others for it, \
                 choose them with --scopes, or with the key scopes of the issuer in the configuration of kas"
            ));
        }
        Ok(tokens)
    }

    /// Returns the parameters of both kinds of login.
    fn parameters(&self, scopes: String) -> Vec<(&'static str, String)> {
        let mut parameters = vec![("scope", scopes)];
        parameters.extend(self.audience.clone().map(|audience| ("audience", audience)));
        parameters
    }

    /// Returns the options that identify a session.
    fn cache_key(&self) -> String {
        let audience = self.audience.as_deref().unwrap_or_default();
        let scopes = self.scopes.clone().unwrap_or_else(|| format!("claims {}", self.claims.join(" ")));
        format!("{}\n{}\n{scopes}\n{audience}\n{:?}", self.issuer, self.client_id, self.token)
    }
}

impl From<RequestedToken> for oidc::RequestedToken {
    fn from(token: RequestedToken) -> Self {
        match token {
            RequestedToken::Id => Self::Id,
            RequestedToken::Access => Self::Access,
        }
    }
}

impl From<LoginError> for CliError {
    fn from(error: LoginError) -> Self {
        let message = error.to_string();
        match error {
            LoginError::Unavailable(_) | LoginError::Failed(_) => Self::unavailable(message),
            LoginError::Refused(_) => Self::forbidden(message),
        }
    }
}

impl Logout {
    /// Removes the cached tokens.
    pub fn run(self) -> CommandResult {
        let directory = cache::directory()?;
        match std::fs::remove_dir_all(&directory) {
            Ok(()) => print("logged out\n"),
            Err(error) if error.kind() == ErrorKind::NotFound => print("there was no login\n"),
            Err(error) => Err(CliError::output(format!("{}: {error}", directory.display()))),
        }
    }
}

/// Checks the URL of an issuer. Its text is kept, because the claim `iss` must equal it.
fn issuer_url(text: &str) -> Result<String, EndpointUrlError> {
    text.parse::<EndpointUrl>().map(|_| text.to_owned())
}

/// Returns the time since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn has_display() -> bool {
    cfg!(target_os = "macos")
        || ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].iter().any(|name| env::var_os(name).is_some())
}

fn read_secret(file: &Path) -> Result<SecretString, CliError> {
    let text = files::read_text(file).map_err(|error| {
        CliError::usage(format!("the client secret file {}: {}", file.display(), unreadable(&error)))
    })?;
    Ok(text.trim().into())
}

/// Prints a line for the user. Standard output is for kubectl.
fn print_notice(text: &str) {
    // If standard error is closed, the user does not see the line.
    let _ = writeln!(std::io::stderr(), "{text}");
}
