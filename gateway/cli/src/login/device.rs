//! Login with a code on another device (RFC 8628).

use std::time::Duration;

use oidc::{EndpointUrl, FetchError, LoginError, OauthClient, Tokens, printable};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::print_notice;

/// The longest time for a login, whatever the issuer allows.
const MAX_TIME: Duration = Duration::from_secs(30 * 60);

#[derive(Deserialize)]
struct DeviceAuthorization {
    device_code: SecretString,
    user_code: String,
    verification_uri: EndpointUrl,
    verification_uri_complete: Option<EndpointUrl>,
    expires_in: u64,
    #[serde(default = "default_interval")]
    interval: u64,
}

/// Section 3.2.
fn default_interval() -> u64 {
    5
}

/// Shows a code, and waits until the user has entered it.
pub(super) async fn log_in(
    client: &OauthClient,
    endpoint: &EndpointUrl,
    parameters: &[(&str, String)],
) -> Result<Tokens, LoginError> {
    let parameters: Vec<_> = parameters.iter().map(|(name, value)| (*name, &**value)).collect();
    let body = client.post(endpoint, &parameters).await?;
    let device: DeviceAuthorization = serde_json::from_slice(&body)
        .map_err(|error| FetchError::invalid("the response of the device endpoint", &error))?;
    let code = printable(&device.user_code);
    let url = device.verification_uri_complete.as_ref().unwrap_or(&device.verification_uri);
    print_notice(&format!("To log in, open {url} and check or enter the code {code}"));

    let end = Instant::now() + Duration::from_secs(device.expires_in).min(MAX_TIME);
    let mut interval = Duration::from_secs(device.interval.clamp(1, 60));
    let parameters = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
        ("device_code", device.device_code.expose_secret()),
    ];
    while Instant::now() + interval < end {
        sleep(interval).await;
        match client.request_tokens(&parameters, None).await {
            Err(LoginError::Refused(error)) if error.error == "authorization_pending" => {}
            // Section 3.5.
            Err(LoginError::Refused(error)) if error.error == "slow_down" => {
                interval += Duration::from_secs(5)
            }
            // Section 3.5, too: a lost connection does not end the login.
            Err(LoginError::Unavailable(_)) => interval = (interval * 2).min(Duration::from_secs(60)),
            result => return result,
        }
    }
    Err(LoginError::Failed("the code has expired: run the command again".to_owned()))
}
