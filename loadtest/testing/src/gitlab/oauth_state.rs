//! The state of the OAuth server: applications, codes and tokens, and the access of users.

use std::collections::{BTreeMap, HashMap};

use serde_json::json;

use crate::gitlab::answer::Answer;

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
    pub(crate) codes: HashMap<String, PendingCode>,
    /// The users of valid access tokens.
    pub(crate) access_tokens: HashMap<String, String>,
    /// The users of refresh tokens, with the access token that each of them replaces.
    pub(crate) refresh_tokens: HashMap<String, (String, String)>,
    pub(crate) issued: u64,
}

/// A code that was given to a browser.
#[derive(Debug)]
pub(crate) struct PendingCode {
    pub(crate) client: String,
    pub(crate) redirect: String,
    pub(crate) challenge: String,
    pub(crate) username: String,
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

    /// Revokes all tokens of a user, as when it is deleted.
    pub fn revoke_user(&mut self, username: &str) {
        self.access_tokens.retain(|_, user| user != username);
        self.refresh_tokens.retain(|_, (user, _)| user != username);
    }

    /// Returns the number of access tokens and of refresh tokens that are valid.
    pub fn tokens(&self) -> (usize, usize) {
        (self.access_tokens.len(), self.refresh_tokens.len())
    }

    pub(crate) fn issue(&mut self, username: &str) -> Answer {
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
    pub(crate) fn is_client(&self, form: &HashMap<String, String>) -> bool {
        let application = form.get("client_id").and_then(|id| self.applications.get(id));
        application.is_some_and(|secret| secret.as_ref() == form.get("client_secret"))
    }
}
