//! The OAuth server of GitLab (Doorkeeper), and the part of its GraphQL API that tells which access a user has.

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use url::{Url, form_urlencoded};

use crate::gitlab::{
    StandIn,
    answer::Answer,
    oauth_state::PendingCode,
    request::{KasRequest, Violation, parse, violation},
    state::{Account, State},
};

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
    match user.account {
        Account::Active => {}
        // `sessionless_sign_in` admits nobody who may not log in, and `authorize_access_api!` then finds a token without a user.
        Account::Blocked => return Ok((401, json!({"errors": [{"message": "Invalid token"}]}))),
        Account::Deactivated => {
            return Ok((403, json!({"errors": [{"message": "API not accessible for user"}]})));
        }
    }
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
