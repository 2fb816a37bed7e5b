//! Login with the browser of this machine: authorization code with PKCE (RFC 7636) and a loopback redirect (RFC 8252).

use std::{env, process::Stdio};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use oidc::EndpointUrl;
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use url::form_urlencoded::Serializer;

use super::{
    callback::{CallbackServer, RedirectUri},
    oauth::{LoginError, OauthClient, Tokens},
    print_notice,
};

/// Opens the page of the issuer, waits for its redirect, and exchanges the code.
pub(super) async fn log_in(
    client: &OauthClient,
    endpoint: &EndpointUrl,
    redirect: &RedirectUri,
    parameters: &[(&str, String)],
) -> Result<Tokens, LoginError> {
    let server = CallbackServer::bind(redirect).await.map_err(LoginError::Failed)?;
    let [state, nonce, verifier] = [random(), random(), random()];
    let redirect_uri = server.redirect_uri();
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&verifier));
    let mut query = Serializer::new(String::new());
    query
        .append_pair("response_type", "code")
        .append_pair("client_id", &client.client_id)
        .append_pair("redirect_uri", &redirect_uri)
        .append_pair("state", &state)
        .append_pair("nonce", &nonce)
        .append_pair("code_challenge", &challenge)
        .append_pair("code_challenge_method", "S256")
        .extend_pairs(parameters);
    let separator = if endpoint.uri().query().is_some() { '&' } else { '?' };
    let url = format!("{endpoint}{separator}{}", query.finish());
    print_notice(&format!("To log in, open this page in a browser on this machine:\n{url}"));
    open(&url);

    let code = server.wait(&state, &client.issuer).await?;
    let parameters = [
        ("grant_type", "authorization_code"),
        ("code", &*code),
        ("redirect_uri", &redirect_uri),
        ("code_verifier", &verifier),
    ];
    client.request_tokens(&parameters, Some(&nonce)).await
}

/// Returns 256 random bits: `state`, `nonce` and the verifier of PKCE cannot be guessed.
fn random() -> String {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the operating system has randomness");
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Starts the browser. If that fails, the user opens the page that was printed.
fn open(url: &str) {
    let system = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let program = env::var("BROWSER").ok().filter(|program| !program.is_empty());
    let _ = Command::new(program.as_deref().unwrap_or(system))
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
}
