//! Tests of `kas login` and `kas logout`: the binary against an issuer in this process.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt as _,
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{Request, StatusCode, header::LOCATION};
use kas_testing::issuer::{IssuerKey, now};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;
use url::form_urlencoded;

/// The timeout of every wait.
const SOON: Duration = Duration::from_secs(30);

/// A running issuer, and the cache directory of a user.
struct World {
    issuer: Arc<Issuer>,
    cache: TempDir,
    _serving: AbortOnDropHandle<()>,
}

struct Issuer {
    url: String,
    key: IssuerKey,
    state: Mutex<IssuerState>,
}

struct IssuerState {
    /// The parameters of each request to the token endpoint.
    requests: Vec<HashMap<String, String>>,
    /// The parameters of the last request of a browser.
    authorization: HashMap<String, String>,
    /// The life of tokens in seconds.
    life: u64,
    /// The error of the next requests to the token endpoint.
    errors: Vec<&'static str>,
    /// The current refresh token is `refresh-<number>`.
    refresh: u32,
    /// The issuer of tokens and of redirects, if it is not this one.
    other: Option<&'static str>,
}

impl World {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = IssuerState {
            requests: Vec::new(),
            authorization: HashMap::new(),
            life: 3600,
            errors: Vec::new(),
            refresh: 1,
            other: None,
        };
        let url = format!("http://{}", listener.local_addr().unwrap());
        let issuer = Arc::new(Issuer { url, key: IssuerKey::ec("a"), state: Mutex::new(state) });
        let router = Router::new().fallback(serve).with_state(Arc::clone(&issuer));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { issuer, cache: tempfile::tempdir().unwrap(), _serving: AbortOnDropHandle::new(serving) }
    }

    /// Starts `kas login` as kubectl does.
    fn login(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().unwrap()
    }

    /// Returns the command that kubectl runs.
    fn command(&self, arguments: &[&str]) -> Command {
        let info =
            json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "spec": {}});
        let mut command = Command::new(env!("CARGO_BIN_EXE_kas"));
        command
            .args(["login", "--issuer", &self.issuer.url, "--client-id", "kas"])
            .args(arguments)
            .env("XDG_CACHE_HOME", self.cache.path())
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .env("BROWSER", "true")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs `kas login`, which needs no user.
    async fn run(&self, arguments: &[&str]) -> Output {
        timeout(SOON, self.login(arguments).wait_with_output()).await.expect("it ends").unwrap()
    }

    /// Runs `kas login --browser`, and logs in like a person. Returns the output and the lines of standard error.
    async fn log_in_by_browser(&self, arguments: &[&str]) -> (Output, String) {
        let mut child = self.login(&[&["--browser"], arguments].concat());
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = loop {
            let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap().expect("it prints a URL");
            if line.starts_with("http") {
                break line;
            }
        };
        let redirect = browse(&url).await;
        let location = redirect.lines().find_map(|line| line.strip_prefix("location: ")).unwrap().to_owned();
        // Another page on the machine knows the port, and not the state.
        let (path, _) = location.split_once('?').unwrap();
        assert!(browse(&format!("{path}?code=stolen&state=guessed")).await.starts_with("HTTP/1.1 400"));
        browse(&location).await;
        let output = timeout(SOON, child.wait_with_output()).await.unwrap().unwrap();
        let mut rest = String::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            rest += &line;
        }
        (output, rest)
    }

    fn grants(&self) -> Vec<String> {
        self.issuer.state.lock().requests.iter().map(|request| request["grant_type"].clone()).collect()
    }
}

/// Sends a GET request, and returns the response as text.
async fn browse(url: &str) -> String {
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let address = address.replace("localhost", "127.0.0.1");
    let mut io = TcpStream::connect(&address).await.unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    io.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    io.read_to_string(&mut response).await.unwrap();
    response
}

async fn serve(State(issuer): State<Arc<Issuer>>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let parameters = |text: &[u8]| form_urlencoded::parse(text).into_owned().collect::<HashMap<_, _>>();
    let form = parameters(&body);
    let url = &issuer.url;
    match head.uri.path() {
        "/.well-known/openid-configuration" => json_response(
            StatusCode::OK,
            json!({
                "issuer": url,
                "jwks_uri": format!("{url}/keys"),
                "authorization_endpoint": format!("{url}/auth"),
                "token_endpoint": format!("{url}/token"),
                "device_authorization_endpoint": format!("{url}/device"),
                "scopes_supported": ["openid", "email", "groups", "profile", "offline_access"],
            }),
        ),
        "/auth" => {
            let query = parameters(head.uri.query().unwrap().as_bytes());
            let location = format!("{}?code=the-code&state={}", query["redirect_uri"], query["state"]);
            issuer.state.lock().authorization = query;
            Response::builder().status(302).header(LOCATION, location).body(Body::empty()).unwrap()
        }
        "/device" => {
            assert_eq!(form["client_id"], "kas");
            json_response(
                StatusCode::OK,
                json!({
                    "device_code": "the-device-code", "user_code": "WDJB-\u{1b}[2JMJHT", "interval": 1, "expires_in": 60,
                    "verification_uri": format!("{url}/activate"),
                }),
            )
        }
        "/token" => issuer.token(form),
        path => panic!("nothing is at {path}"),
    }
}

fn json_response(status: StatusCode, value: Value) -> Response {
    Response::builder().status(status).body(Body::from(value.to_string())).unwrap()
}

impl Issuer {
    fn token(&self, form: HashMap<String, String>) -> Response {
        let mut state = self.state.lock();
        state.requests.push(form.clone());
        assert_eq!(form["client_id"], "kas");
        let valid = match &*form["grant_type"] {
            "authorization_code" => {
                let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]));
                let asked = &state.authorization;
                form["code"] == "the-code"
                    && asked["code_challenge_method"] == "S256"
                    && asked["code_challenge"] == challenge
                    && asked["redirect_uri"] == form["redirect_uri"]
            }
            "refresh_token" => form["refresh_token"] == format!("refresh-{}", state.refresh),
            "urn:ietf:params:oauth:grant-type:device_code" => form["device_code"] == "the-device-code",
            other => panic!("{other}"),
        };
        let error = state.errors.pop().or_else(|| (!valid).then_some("invalid_grant"));
        if let Some(error) = error {
            return json_response(StatusCode::BAD_REQUEST, json!({"error": error}));
        }
        state.refresh += 1;
        // As Dex does, which puts claims into a token only if their scopes were asked for.
        let scopes = state.authorization.get("scope").cloned().unwrap_or_default();
        let released = |scope: &str, value: Value| {
            if scopes.split(' ').any(|name| name == scope) { value } else { Value::Null }
        };
        let mut claims = json!({
            "iss": state.other.unwrap_or(&self.url), "aud": "kas", "sub": "alice", "exp": now() + state.life,
            "nonce": state.authorization.get("nonce"), "jti": state.refresh,
            "email": released("email", json!("alice@example.com")), "groups": released("groups", json!(["dev"])),
        });
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let token = self.key.token(&claims);
        let refresh = format!("refresh-{}", state.refresh);
        json_response(
            StatusCode::OK,
            json!({"id_token": token, "access_token": "opaque", "refresh_token": refresh}),
        )
    }
}

/// Returns the token that kubectl gets.
fn token(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let credential: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(credential["apiVersion"], "client.authentication.k8s.io/v1");
    assert!(credential["status"]["expirationTimestamp"].as_str().unwrap().ends_with('Z'));
    credential["status"]["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn browser_login_is_cached_for_its_user_only() {
    let world = World::new().await;
    let (output, errors) = world.log_in_by_browser(&[]).await;
    let first = token(&output);
    assert!(!errors.contains(&first) && !errors.contains("refresh-"), "{errors}");
    assert_eq!(token(&world.run(&[]).await), first);
    assert_eq!(world.grants(), ["authorization_code"], "the second run needed no request");

    let directory = world.cache.path().join("kas/login");
    assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
    for file in fs::read_dir(&directory).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().mode() & 0o777, 0o600);
    }
    let mut logout = Command::new(env!("CARGO_BIN_EXE_kas"));
    let logout = logout.arg("logout").env("XDG_CACHE_HOME", world.cache.path()).output().await.unwrap();
    assert_eq!(logout.stdout, b"logged out\n");
    assert!(!directory.exists());
}

#[tokio::test]
async fn login_asks_for_the_scopes_of_the_claims_that_kas_needs() {
    let claims = ["--claim=email", "--claim=groups", "--claim=sub"];
    for (arguments, scopes, missing) in [
        (&claims[..], "openid email groups offline_access", None),
        (&[], "openid offline_access", None),
        (&[&claims[..], &["--scopes", "openid"]].concat(), "openid", Some("email and groups")),
        (
            &["--scopes", "openid", "--scopes", "openid profile", "--claim=groups"],
            "openid profile",
            Some("groups"),
        ),
    ] {
        let world = World::new().await;
        let (output, errors) = world.log_in_by_browser(arguments).await;
        let token = token(&output);
        assert_eq!(world.issuer.state.lock().authorization["scope"], scopes, "{arguments:?}");
        let notice = missing
            .map(|missing| format!("the token has no {missing}, which kas needs; the scopes were {scopes}"));
        assert_eq!(
            notice.as_ref().is_some_and(|notice| errors.contains(notice)),
            missing.is_some(),
            "{errors}"
        );
        assert!(missing.is_some() || !errors.contains("kas needs"), "{errors}");
        let payload = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        let payload: Value = serde_json::from_slice(&payload).unwrap();
        assert_eq!(payload["groups"].is_array(), scopes.contains("groups"));
        assert_eq!(self::token(&world.run(arguments).await), token, "the next run uses the cached token");
    }
}

#[tokio::test]
async fn parallel_runs_refresh_an_expired_token_once() {
    let world = World::new().await;
    world.issuer.state.lock().life = 1;
    let (output, _) = world.log_in_by_browser(&[]).await;
    let first = token(&output);
    world.issuer.state.lock().life = 3600;
    let (one, two, three) = tokio::join!(world.run(&[]), world.run(&[]), world.run(&[]));
    let tokens = [token(&one), token(&two), token(&three)];
    assert!(tokens.iter().all(|token| *token == tokens[0] && *token != first));
    assert_eq!(world.grants(), ["authorization_code", "refresh_token"]);
}

#[tokio::test]
async fn ended_session_needs_another_login() {
    let world = World::new().await;
    world.issuer.state.lock().life = 1;
    world.log_in_by_browser(&[]).await;
    world.issuer.state.lock().refresh += 7;
    token(&world.log_in_by_browser(&[]).await.0);
    assert_eq!(world.grants(), ["authorization_code", "refresh_token", "authorization_code"]);
}

#[tokio::test]
async fn device_login_waits_for_the_user() {
    let world = World::new().await;
    world.issuer.state.lock().errors = vec!["authorization_pending"];
    let output = world.run(&["--device"]).await;
    token(&output);
    let errors = String::from_utf8(output.stderr).unwrap();
    let expected =
        format!("To log in, open {}/activate and check or enter the code WDJB-[2JMJHT\n", world.issuer.url);
    assert_eq!(errors, expected, "no control characters reach the terminal");
}

#[tokio::test]
async fn refused_device_login_names_the_other_one_unless_it_was_chosen() {
    let world = World::new().await;
    for (arguments, expected) in [
        (&["--device"][..], "kas: the issuer refused the login: unauthorized_client\n"),
        (&[], "tried a login on another device; choose --browser\n"),
    ] {
        world.issuer.state.lock().errors = vec!["unauthorized_client"];
        let mut command = world.command(arguments);
        for display in ["BROWSER", "DISPLAY", "WAYLAND_DISPLAY"] {
            command.env_remove(display);
        }
        let output = timeout(SOON, command.output()).await.expect("it ends").unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(77), "{errors}");
        assert!(errors.ends_with(expected), "{errors}");
    }
}

#[tokio::test]
async fn failed_login_is_one_line_and_an_exit_code() {
    let world = World::new().await;
    world.issuer.state.lock().errors = vec!["access_denied"];
    let denied = world.run(&["--device"]).await;
    world.issuer.state.lock().other = Some("https://evil.example.com");
    let foreign = world.run(&["--device"]).await;
    world.issuer.state.lock().other = None;
    let opaque = world.run(&["--device", "--token", "access"]).await;
    let down = Command::new(env!("CARGO_BIN_EXE_kas"))
        .args(["login", "--issuer", "http://127.0.0.1:1", "--client-id", "kas"])
        .env("XDG_CACHE_HOME", world.cache.path())
        .output()
        .await
        .unwrap();
    for (output, code, expected) in [
        (denied, 77, "kas: the issuer refused the login: access_denied"),
        (foreign, 69, "the token is that of another issuer (iss)"),
        (opaque, 69, "the token is not a JWT"),
        (down, 69, "kas: http://127.0.0.1:1/.well-known/openid-configuration: "),
    ] {
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(output.stdout.is_empty());
        assert!(errors.lines().last().unwrap().contains(expected), "{errors}");
    }
}
