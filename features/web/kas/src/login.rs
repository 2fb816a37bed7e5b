//! Logins: with a token that a person enters, or at an OIDC issuer.
//!
//! ```text
//!   page ──► /web/v1/login?issuer=dex ──► the issuer ──► /web/v1/callback/dex?code=… ──► page
//!                 sets __Host-kas-login                      sets __Host-kas
//! ```
//!
//! The browser comes back from another site, so that it does not send cookies with `SameSite=Strict`. So the login has a cookie of its own
//! with `SameSite=Lax`, without which the code of the issuer is worth nothing here: another site cannot log a browser in as somebody else.
//!
//! Each issuer has a redirect address of its own, so that no issuer gets the code of another one (mix-up, RFC 9700 section 4.4).

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::{
    AccessControl, Grant, Identities, ProjectAgents, RequestError, UserLoginError, UserSources,
    token::TokenHash,
};
use axum::body::Body;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{CACHE_CONTROL, HOST, LOCATION, SET_COOKIE},
};
use proto::Reason;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use store::{SESSION_TTL, SessionHolder};
use url::form_urlencoded;

use super::{
    TOO_MANY, cookies,
    response::{refusal, respond, with_retry_after},
    sessions,
};

/// The cookie of a login that has begun. It has the prefix for the same reason as that of a session.
const COOKIE: &str = "__Host-kas-login";
/// The time for the login at the issuer.
const LIFETIME: Duration = Duration::from_secs(600);
/// The longest address of the page to which a login returns.
const MAX_RETURN: usize = 1024;
/// The path of the redirects of an issuer, before the name of the issuer.
pub(super) const CALLBACK_PREFIX: &str = "/web/v1/callback/";

/// The sources of callers that can log in.
#[derive(Debug)]
pub(super) struct Logins {
    pub(super) identities: Identities,
    pub(super) users: UserSources,
    /// The agents of GitLab, if one is configured.
    pub(super) project_agents: Option<Arc<dyn ProjectAgents>>,
    pub(super) access: AccessControl,
    /// The listener has TLS.
    pub(super) has_tls: bool,
}

/// A caller whose token is valid.
pub(super) struct WebCaller {
    pub(super) grant: Arc<Grant>,
    pub(super) holder: SessionHolder,
    /// The time until the token expires, at most 8 h.
    pub(super) ttl: Duration,
}

/// A login that has begun in this browser, as its cookie keeps it.
#[derive(Serialize, Deserialize)]
struct PendingLogin {
    issuer: String,
    /// The state of the login at the issuer.
    request: serde_json::Value,
    /// The address of the page to which the browser returns.
    page: String,
}

/// A login at an issuer that has succeeded.
pub(super) struct CompletedLogin {
    pub(super) token: SecretString,
    pub(super) caller: WebCaller,
    /// The address of the page to which the browser returns.
    pub(super) page: String,
}

/// The reason for which a login at an issuer has failed.
#[derive(Debug)]
pub(super) struct LoginFailure {
    /// The label of the metric.
    pub(super) result: &'static str,
    pub(super) status: StatusCode,
    pub(super) what: String,
    pub(super) retry_after: Option<Duration>,
}

impl Logins {
    /// Returns the caller of a token, or `None` if nobody has it.
    ///
    /// # Errors
    ///
    /// It is the token of an issuer and is refused, or cannot be verified now.
    pub(super) async fn caller(
        &self,
        token: &SecretString,
        client: IpAddr,
    ) -> Result<Option<WebCaller>, RequestError> {
        let hash = TokenHash::of(token);
        if let Some(grant) = self.identities.load().grant(&hash) {
            let grant = Arc::clone(grant);
            return Ok(Some(WebCaller { grant, holder: sessions::holder(&hash), ttl: SESSION_TTL }));
        }
        let caller = self.users.authenticate(token, client).await?;
        Ok(caller.map(|caller| {
            let user = SecretString::from(format!("{} {}", caller.issuer, caller.username));
            let left = caller.expires.duration_since(SystemTime::now()).unwrap_or_default();
            WebCaller {
                grant: caller.grant,
                holder: sessions::holder(&TokenHash::of_credential("user of an issuer", &user, None)),
                ttl: left.min(SESSION_TTL),
            }
        }))
    }

    /// Returns the names of the issuers at which people log in to the page.
    pub(super) fn issuers(&self) -> Vec<&str> {
        self.users.login_issuers()
    }

    /// Begins a login at an issuer: sends the browser there.
    pub(super) fn begin<T>(&self, request: &Request<T>) -> Result<Response<Body>, LoginFailure> {
        let query = request.uri().query().unwrap_or_default();
        let parameter = |name: &str| {
            let found = form_urlencoded::parse(query.as_bytes()).find(|(known, _)| known == name);
            found.map(|(_, value)| value.into_owned())
        };
        let name = parameter("issuer").unwrap_or_default();
        let unknown = || {
            LoginFailure::new(
                "issuer",
                StatusCode::NOT_FOUND,
                "people do not log in to this page at that issuer",
            )
        };
        if !self.issuers().contains(&&*name) {
            return Err(unknown());
        }
        let redirect = self.redirect_uri(request, &name).ok_or_else(|| {
            LoginFailure::new("issuer", StatusCode::BAD_REQUEST, "the request has no valid Host")
        })?;
        let login = self.users.begin_login(&name, &redirect)?.ok_or_else(unknown)?;
        let pending = PendingLogin {
            issuer: name,
            request: login.state,
            page: parameter("page").filter(|page| is_page(page)).unwrap_or_else(|| "/".to_owned()),
        };
        let cookie = BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&pending).expect("texts"));
        Ok(redirect_to(&login.url, [set_cookie(&cookie, LIFETIME)]))
    }

    /// Completes the login for which the issuer has sent the browser back.
    pub(super) async fn complete<T>(
        &self,
        request: &Request<T>,
        client: IpAddr,
    ) -> Result<CompletedLogin, LoginFailure> {
        let foreign = || {
            let what =
                "this login was not begun in this browser, or has taken more than 10 minutes: log in again";
            LoginFailure::new("state", StatusCode::BAD_REQUEST, what)
        };
        let PendingLogin { issuer, request: state, page } =
            PendingLogin::of(request.headers()).ok_or_else(foreign)?;
        if request.uri().path().strip_prefix(CALLBACK_PREFIX) != Some(&*issuer) {
            let what = "the browser came back from another issuer than the one of this login";
            return Err(LoginFailure::new("state", StatusCode::BAD_REQUEST, what));
        }
        let query = request.uri().query().unwrap_or_default();
        let token = self.users.complete_login(&issuer, &state, query, client).await?.ok_or_else(foreign)?;
        let caller = self.caller(&token, client).await?.ok_or_else(foreign)?;
        Ok(CompletedLogin { token, caller, page })
    }

    /// Returns the URL to which the issuer with this name sends the browser back, at the origin at which the browser is. The issuer
    /// allows it only if it knows it.
    fn redirect_uri<T>(&self, request: &Request<T>, issuer: &str) -> Option<String> {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let authority = request.uri().authority().cloned().or_else(|| host?.parse().ok())?;
        let is_loopback = matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]");
        let scheme = if is_loopback && !self.has_tls { "http" } else { "https" };
        (!authority.as_str().contains('@'))
            .then(|| format!("{scheme}://{authority}{CALLBACK_PREFIX}{issuer}"))
    }
}

impl PendingLogin {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(cookies::value(headers, COOKIE)?).ok()?;
        let pending: Self = serde_json::from_slice(&bytes).ok()?;
        is_page(&pending.page).then_some(pending)
    }
}

impl LoginFailure {
    pub(super) fn new(result: &'static str, status: StatusCode, what: impl Into<String>) -> Self {
        Self { result, status, what: what.into(), retry_after: None }
    }

    /// Returns the reason as text, for the page.
    pub(super) fn into_text(self) -> Response<Body> {
        let mut response = refusal(self.status, &self.what);
        with_retry_after(&mut response, self.retry_after);
        response
    }

    /// Returns a page with the reason.
    pub(super) fn into_response(self) -> Response<Body> {
        let what = escape(&self.what);
        let text = format!(
            "<!doctype html>\n<html lang=\"en\"><title>kas</title><h1>The login failed</h1><p>{what}</p><p><a href=\"/\">Back</a></p></html>\n"
        );
        let mut response = respond(self.status, "text/html; charset=utf-8", text);
        with_retry_after(&mut response, self.retry_after);
        // A code is of use once.
        append_cookie(&mut response, &set_cookie("", Duration::ZERO));
        response
    }
}

impl From<RequestError> for LoginFailure {
    fn from(error: RequestError) -> Self {
        let (result, what) = match error.reason {
            Reason::TooManyRequests => ("limit", TOO_MANY.to_owned()),
            Reason::IdentityUnavailable => ("unavailable", error.message),
            _ => ("unknown", error.message),
        };
        Self { retry_after: error.retry_after, ..Self::new(result, error.reason.status(), what) }
    }
}

impl From<UserLoginError> for LoginFailure {
    fn from(error: UserLoginError) -> Self {
        match error {
            UserLoginError::Unavailable(what) => {
                Self::new("unavailable", StatusCode::SERVICE_UNAVAILABLE, what)
            }
            UserLoginError::Refused(what) => Self::new("refused", StatusCode::UNAUTHORIZED, what),
            UserLoginError::Failed(what) => Self::new("refused", StatusCode::BAD_GATEWAY, what),
            UserLoginError::Limited(error) => error.into(),
        }
    }
}

/// Returns the response of a login that has succeeded.
pub(super) fn logged_in(page: &str, session: &str) -> Response<Body> {
    redirect_to(page, [session.to_owned(), set_cookie("", Duration::ZERO)])
}

fn redirect_to<const N: usize>(url: &str, cookies: [String; N]) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let location = HeaderValue::from_str(url);
    headers.insert(LOCATION, location.unwrap_or_else(|_| HeaderValue::from_static("/")));
    for cookie in cookies {
        append_cookie(&mut response, &cookie);
    }
    response
}

fn append_cookie(response: &mut Response<Body>, cookie: &str) {
    let cookie = HeaderValue::from_str(cookie).expect("base64 and constants");
    response.headers_mut().append(SET_COOKIE, cookie);
}

fn set_cookie(value: &str, lifetime: Duration) -> String {
    let seconds = lifetime.as_secs();
    format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Lax")
}

/// Returns whether an address is one of this page, and not of another site: browsers read `\` as `/`.
fn is_page(address: &str) -> bool {
    address.len() <= MAX_RETURN
        && address.starts_with('/')
        && !address[1..].starts_with(['/', '\\'])
        && address.bytes().all(|byte| byte.is_ascii_graphic())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_returns_to_a_page_of_this_origin_only() {
        for (address, expected) in [
            ("/", true),
            ("/agents/prod?namespace=a&o=1", true),
            ("", false),
            ("//evil.example.com", false),
            ("/\\evil.example.com", false),
            ("https://evil.example.com", false),
            ("/a\r\nSet-Cookie: x", false),
            (&format!("/{}", "a".repeat(2000)), false),
        ] {
            assert_eq!(is_page(address), expected, "{address}");
        }
    }

    #[tokio::test]
    async fn failure_is_shown_as_text() {
        let failure = LoginFailure::new("refused", StatusCode::UNAUTHORIZED, "<script>\"a\" & b");
        let response = failure.into_response();
        assert_eq!(response.status(), 401);
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("&lt;script&gt;&quot;a&quot; &amp; b"), "{text}");
    }
}
