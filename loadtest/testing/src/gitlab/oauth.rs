//! The OAuth server of GitLab (Doorkeeper), and the part of its GraphQL API that tells which access a user has.

use std::collections::{BTreeMap, HashMap};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use url::{Url, form_urlencoded};

use crate::gitlab::{
    StandIn,
    answer::Answer,
    request::{KasRequest, Violation, parse, violation},
    state::State,
};

/// The seconds for which an access token is valid.
const LIFETIME: u64 = 7200;

/// The applications, the logins, and the access of users.
#[derive(Debug, Default)]
pub struct OauthState {
    /// The secrets of the applications by their ids. An application without a secret is not confidential.
    pub applications: HashMap<String, Option<String>>,
    /// The access level of each user, by name, in each project and group that it sees, by path. `project.` or `group.` is before the path.
    pub access: HashMap<(String, String), u64>,
    /// The ids of projects and groups by the same paths.
    pub ids: BTreeMap<String, u64>,
    /// The seconds for which access tokens are valid. The default is two hours.
    pub lifetime: Option<u64>,
    codes: HashMap<String, PendingCode>,
    /// The users of valid access tokens.
    access_tokens: HashMap<String, String>,
    /// The users of refresh tokens, with the access token that each of them replaces.
    refresh_tokens: HashMap<String, (String, String)>,
    issued: u64,
}

/// A code that was given to a browser.
#[derive(Debug)]
struct PendingCode {
    client: String,
    redirect: String,
    challenge: String,
    username: String,
}

impl StandIn {
    /// Logs a user in at the page to which kas has sent a browser. Returns the query of the redirect.
    pub fn authorize(&self, url: &str, username: &str) -> String {
        let url: Url = url.parse().unwrap();
        assert_eq!(url.path(), "/oauth/authorize");
        let parameters: HashMap<String, String> = url.query_pairs().into_owned().collect();
        let parameter = |name: &str| parameters.get(name).cloned().unwrap_or_default();
        assert_eq!((&*parameter("response_type"), &*parameter("scope")), ("code", "read_api"));
        assert_eq!(parameter("code_challenge_method"), "S256");
        let mut state = self.state();
        assert!(state.oauth.applications.contains_key(&parameter("client_id")), "an unknown application");
        state.oauth.issued += 1;
        let code = format!("code-{}", state.oauth.issued);
        let pending = PendingCode {
            client: parameter("client_id"),
            redirect: parameter("redirect_uri"),
            challenge: parameter("code_challenge"),
            username: username.to_owned(),
        };
        state.oauth.codes.insert(code.clone(), pending);
        form_urlencoded::Serializer::new(String::new())
            .append_pair("code", &code)
            .append_pair("state", &parameter("state"))
            .finish()
    }
}

impl OauthState {
    /// Gives a user this access level in a project or a group: `project.group/name` or `group.name`. 30 is a developer.
    pub fn set_access(&mut self, username: &str, place: &str, level: u64) {
        self.access.insert((username.to_owned(), place.to_owned()), level);
    }

    /// Lets all access tokens expire, as if two hours had passed.
    pub fn expire_access_tokens(&mut self) {
        self.access_tokens.clear();
    }

    /// Revokes all tokens of a user, as when it is blocked.
    pub fn revoke_user(&mut self, username: &str) {
        self.access_tokens.retain(|_, user| user != username);
        self.refresh_tokens.retain(|_, (user, _)| user != username);
    }

    /// Returns the number of access tokens and of refresh tokens that are valid.
    pub fn tokens(&self) -> (usize, usize) {
        (self.access_tokens.len(), self.refresh_tokens.len())
    }

    fn issue(&mut self, username: &str) -> Answer {
        self.issued += 1;
        let (access, refresh) = (format!("access-{}", self.issued), format!("refresh-{}", self.issued));
        self.access_tokens.insert(access.clone(), username.to_owned());
        self.refresh_tokens.insert(refresh.clone(), (username.to_owned(), access.clone()));
        let lifetime = self.lifetime.unwrap_or(LIFETIME);
        let body = json!({"access_token": access, "token_type": "Bearer", "expires_in": lifetime,
            "refresh_token": refresh, "scope": "read_api", "created_at": 1_700_000_000});
        (200, body)
    }

    /// Returns whether a form has the credential of an application.
    fn is_client(&self, form: &HashMap<String, String>) -> bool {
        let application = form.get("client_id").and_then(|id| self.applications.get(id));
        application.is_some_and(|secret| secret.as_ref() == form.get("client_secret"))
    }
}

fn form(request: &KasRequest) -> HashMap<String, String> {
    form_urlencoded::parse(&request.body).into_owned().collect()
}

fn refused(status: u16, error: &str) -> Answer {
    (status, json!({"error": error, "error_description": format!("text about {error}")}))
}

/// Answers `POST /oauth/token`.
pub(crate) fn token(state: &mut State, request: &KasRequest) -> Result<Answer, Violation> {
    let (form, oauth) = (form(request), &mut state.oauth);
    if !oauth.is_client(&form) {
        return Ok(refused(401, "invalid_client"));
    }
    let parameter = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
    match parameter("grant_type") {
        "authorization_code" => {
            let Some(code) = oauth.codes.remove(parameter("code")) else {
                return Ok(refused(400, "invalid_grant"));
            };
            let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(parameter("code_verifier")));
            let is_its_own = code.challenge == challenge
                && code.client == parameter("client_id")
                && code.redirect == parameter("redirect_uri");
            if !is_its_own {
                return Err(violation(400, "the code is that of another login"));
            }
            Ok(oauth.issue(&code.username))
        }
        "refresh_token" => match oauth.refresh_tokens.remove(parameter("refresh_token")) {
            Some((username, access)) => {
                oauth.access_tokens.remove(&access);
                Ok(oauth.issue(&username))
            }
            None => Ok(refused(400, "invalid_grant")),
        },
        other => Err(violation(400, format!("grant_type is {other:?}"))),
    }
}

/// Answers `POST /oauth/revoke`.
pub(crate) fn revoke(state: &mut State, request: &KasRequest) -> Result<Answer, Violation> {
    let (form, oauth) = (form(request), &mut state.oauth);
    if !oauth.is_client(&form) {
        return Ok(refused(403, "unauthorized_client"));
    }
    let token = form.get("token").ok_or_else(|| violation(400, "token is missing"))?;
    // Both tokens are one row of Doorkeeper's table.
    let access = match oauth.refresh_tokens.get(token) {
        Some((_, access)) => access.clone(),
        None => token.clone(),
    };
    oauth.access_tokens.remove(&access);
    oauth.refresh_tokens.retain(|_, (_, of)| *of != access);
    Ok((200, json!({})))
}

/// Answers `POST /api/graphql` with a question about the current user, projects and groups.
pub(crate) fn memberships(state: &State, request: &KasRequest) -> Result<Answer, Violation> {
    let body: Value = parse(&request.body)?;
    let query = body["query"].as_str().ok_or_else(|| violation(400, "query is missing"))?;
    let oauth = &state.oauth;
    let Some(username) = oauth.access_tokens.get(&request.token) else {
        return Ok((401, json!({"errors": [{"message": "Invalid token"}]})));
    };
    let user = state.users.iter().find(|user| user.username == *username);
    let user = user.ok_or_else(|| violation(400, "the user is unknown to the stand-in"))?;
    if query.matches("fullPath").count() * 4 + 3 > 200 {
        return Ok((
            200,
            json!({"errors": [{"message": "Query has complexity of 300, which exceeds max complexity of 200"}]}),
        ));
    }
    let mut data = Map::new();
    let current = json!({"id": format!("gid://gitlab/User/{}", user.id), "username": user.username});
    data.insert("currentUser".to_owned(), current);
    for (kind, class) in [("project", "Project"), ("group", "Group")] {
        for (before, _) in query.match_indices(&format!(": {kind}(fullPath: $")) {
            let name = query[..before].rsplit([' ', '{']).next().unwrap_or_default();
            let path = body["variables"][name].as_str();
            let path = path.ok_or_else(|| violation(400, format!("there is no variable {name:?}")))?;
            let place = format!("{kind}.{path}");
            let level = oauth.access.get(&(username.clone(), place.clone()));
            let node = level.map(|level| {
                let id = oauth.ids.get(&place).copied().unwrap_or(1);
                json!({"id": format!("gid://gitlab/{class}/{id}"), "maxAccessLevel": {"integerValue": level}})
            });
            data.insert(name.to_owned(), node.unwrap_or_default());
        }
    }
    Ok((200, json!({"data": data})))
}
