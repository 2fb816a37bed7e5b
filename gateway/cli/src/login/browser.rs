//! Login with the browser of this machine, with a loopback redirect (RFC 8252).

use std::{env, process::Stdio};

use oidc::{AuthorizationRequest, EndpointUrl, LoginError, OauthClient, Tokens};
use tokio::process::Command;

use super::{
    callback::{CallbackServer, RedirectUri},
    print_notice,
};

/// Opens the page of the issuer, waits for its redirect, and exchanges the code.
pub(super) async fn log_in(
    client: &OauthClient,
    endpoint: &EndpointUrl,
    redirect: &RedirectUri,
    parameters: &[(&str, String)],
) -> Result<Tokens, LoginError> {
    let server = CallbackServer::bind(redirect).await;
    let server = server.map_err(|error| LoginError::Failed(error.to_string()))?;
    let request = AuthorizationRequest::new(server.redirect_uri());
    let url = request.url(client, endpoint, parameters);
    print_notice(&format!("To log in, open this page in a browser on this machine:\n{url}"));
    open(&url);

    let code = server.wait(request.clone(), client.clone()).await?;
    request.exchange(client, &code).await
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
