//! Logins of people to the web page at GitLab.
//!
//! ```text
//!   browser ──► GitLab: /oauth/authorize ──► kas: code ──► GitLab: /oauth/token ──► tokens of OAuth
//!                                                              │
//!   token of the login, in the session of the browser ◄────────┴────► record in the store, sealed with the token of the login
//! ```
//!
//! GitLab's access tokens live for two hours, and a refresh token can be used once. So a login has a token of its own, which stays the
//! same, and which stands for those of GitLab at all replicas.
//!
//! GitLab answers `authorize_proxy_user` about cookies of its own page and personal access tokens alone. About a login, kas decides by
//! the same rule: by the list `user_access` of the agent ([`AgentFactsLookup`]), and by the access of the user to the projects and groups of
//! that list, about which kas asks GitLab with the token of the user.
//!
//! | file | content |
//! |---|---|
//! | `oauth` | the application of kas in GitLab, and its endpoints |
//! | `members` | the question about the access of a user, and its answer |
//! | `places` | the projects and groups of the lists `user_access` |
//! | `known` | a login that this replica knows |
//! | `record` | a login in the store |
//! | `ends` | the ends of logins |

mod ends;
mod known;
mod members;
mod oauth;
mod places;
mod record;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::{
    AuthenticatedUser, LoginRequest, MissingAgents, ProjectAgentName, RequestError, UnknownCredentials,
    UserLoginError, token::TokenHash,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use moka::future::Cache;
use oidc::{AuthorizationRequest, EndpointUrl, LoginError, Tokens};
use proto::{AgentId, Reason};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use store::{EndedSessions, NewSession, SESSION_TTL, SessionHolder, SessionLimits, Store, StoreError};
use tokio::sync::Semaphore;

use self::{
    ends::{DueLogin, LoginEnds},
    known::{Access, Login, login_ended, unavailable},
    members::{Member, Place, PlaceAccess},
    oauth::OauthApplication,
    places::{places, places_in_turns},
    record::LoginRecord,
};
use crate::{
    AgentFactsLookup, BudgetShare, GitLabClient,
    agent_facts::{Admission, AdmittedUsers, AgentFacts, Found, UserAccessMode, UserServices},
    config::GitLabLoginConfig,
    in_flight::InFlightCounters,
    user_access,
};

/// The name of GitLab among the issuers at which people log in.
pub const LOGIN_ISSUER: &str = "gitlab";
/// The beginning of the token of a login.
const PREFIX: &str = "kas-gitlab-login-";
/// The limits over all replicas, which are those of the sessions of browsers: a login has a record beside that of its session.
const LIMITS: SessionLimits = SessionLimits { sessions: 10_000, per_holder: 50 };
/// The most logins that a replica remembers, and the time for which it remembers one that nobody uses.
const CAPACITY: u64 = 10_000;
const RETENTION: Duration = Duration::from_secs(3600);
/// The greatest age of an answer with which the rights for an agent are decided, so that it is not used for a second period.
const MAX_AGE: Duration = Duration::from_secs(5);
/// The most logins that end at the same time, so that they leave the budget of GitLab to others.
const MAX_ENDING: usize = 16;
/// The most projects and groups about which GitLab is asked for the list of a user's agents.
const MAX_PLACES_OF_LIST: usize = 2_000;

/// The logins at a GitLab. Clones are cheap.
#[derive(Clone, Debug)]
pub(crate) struct GitLabLogins {
    source: Arc<LoginSource>,
    facts: AgentFactsLookup,
    /// The logins that this replica knows.
    known: Cache<TokenHash, Arc<Login>>,
    unknown: Arc<UnknownCredentials>,
    ends: LoginEnds,
}

/// The servers that have the tokens and the memberships of users.
#[derive(Debug)]
struct LoginSource {
    client: GitLabClient,
    application: OauthApplication,
    store: Arc<dyn Store>,
    in_flight: InFlightCounters,
    /// The time for which an answer of GitLab is valid.
    ttl: Duration,
}

/// A user of a login, as GitLab would describe it for an agent.
#[derive(Clone, Debug)]
pub(crate) struct LoginUser {
    /// The id of the agent.
    pub(crate) agent: AgentId,
    /// The id.
    pub(crate) id: u64,
    /// The name.
    pub(crate) username: String,
    /// The id of the project with the configuration of the agent.
    pub(crate) config_project: u64,
    /// The identity of users in the cluster.
    pub(crate) mode: UserAccessMode,
    /// The ids of the projects of `user_access` in which the user is at least a developer, each with its roles.
    pub(crate) projects: Vec<(u64, Vec<String>)>,
    /// The same of groups.
    pub(crate) groups: Vec<(u64, Vec<String>)>,
}

/// The agents that a user may use.
#[derive(Debug)]
pub(crate) struct LoginAgents {
    /// The agents.
    pub(crate) agents: Vec<LoginAgent>,
    /// The reason for which some may be missing.
    pub(crate) missing: Option<MissingAgents>,
}

/// An agent that a user may use.
#[derive(Debug)]
pub(crate) struct LoginAgent {
    /// Its name and the path of its project.
    pub(crate) name: ProjectAgentName,
    /// The user, for this agent.
    pub(crate) user: LoginUser,
    /// The list `user_access.services` of the agent.
    pub(crate) services: UserServices,
}

/// The settings of logins.
#[derive(Clone, Debug)]
pub struct LoginSettings {
    /// The application of kas in GitLab.
    pub application: GitLabLoginConfig,
    /// The URL of GitLab for browsers.
    pub url: EndpointUrl,
}

impl GitLabLogins {
    /// Creates the logins at a GitLab. An answer of it about a user is valid for `ttl`.
    pub(crate) fn new(
        client: GitLabClient,
        settings: &LoginSettings,
        store: Arc<dyn Store>,
        facts: AgentFactsLookup,
        in_flight: InFlightCounters,
        unknown: Arc<UnknownCredentials>,
        ttl: Duration,
    ) -> Self {
        let share = client.with_share(BudgetShare::UnknownCallers);
        let application = OauthApplication::new(share, &settings.application, settings.url.clone());
        let known = Cache::builder().max_capacity(CAPACITY).time_to_idle(RETENTION).build();
        Self {
            source: Arc::new(LoginSource { client, application, store, in_flight, ttl }),
            facts,
            known,
            unknown,
            ends: LoginEnds::default(),
        }
    }

    /// Ends the logins that began here, or that this replica has served, when their time is over. The future never completes.
    pub(crate) async fn run(&self) {
        let ending = Arc::new(Semaphore::new(MAX_ENDING));
        loop {
            // The end of a login holds it until GitLab has answered, or its client gives up.
            let permit = Arc::clone(&ending).acquire_owned().await;
            let due = self.ends.next().await;
            let logins = self.clone();
            tokio::spawn(async move {
                logins.end_due(&due).await;
                drop(permit);
            });
        }
    }

    /// Ends a login whose time is over. Of the replicas that know it, the one that removes its record revokes its tokens.
    async fn end_due(&self, due: &DueLogin) {
        let ttl = self.source.store.session_ttl(record::id(&due.token)).await;
        if ttl.is_ok() {
            self.ends.on_store_response();
        }
        match &ttl {
            Ok(Some(remaining)) if self.ends.postpone(due, *remaining) => return,
            Err(error) if self.ends.retry(due, error) => return,
            Ok(_) | Err(_) => {}
        }
        let known = self.forget(&due.token).await;
        let tokens = match (self.source.take(&due.token).await, known) {
            (Ok(tokens), _) => tokens,
            (Err(_), Some(login)) => Some(login.tokens().await),
            (Err(error), None) => {
                self.ends.retry(due, &error);
                None
            }
        };
        if let Some(tokens) = tokens {
            self.source.revoke(&tokens).await;
        }
    }

    /// Removes a login that this replica knows, and ends its streams. Tokens that are being renewed are not stored any more.
    async fn forget(&self, token: &SecretString) -> Option<Arc<Login>> {
        let known = self.known.remove(&TokenHash::of(token)).await;
        if let Some(login) = &known {
            login.end();
        }
        known
    }

    /// Returns whether a token is one of a login.
    pub(crate) fn is_login(token: &SecretString) -> bool {
        token.expose_secret().starts_with(PREFIX)
    }

    /// Returns the user of a login, as GitLab would describe it for this agent, and the list `user_access.services` of the agent.
    ///
    /// # Errors
    ///
    /// * `unauthorized`: there is no such login any more.
    /// * `forbidden`: `user_access` of the agent does not admit the user.
    /// * `identity-unavailable`: GitLab does not answer, or no replica knows the configuration of the agent.
    pub(crate) async fn user(
        &self,
        token: &SecretString,
        address: IpAddr,
        agent: AgentId,
        share: BudgetShare,
    ) -> Result<(LoginUser, UserServices), RequestError> {
        let login = self.find(token, address).await?;
        let Found::Facts(facts) = self.facts.find(agent).await else {
            return Err(user_access::unknown(agent));
        };
        let admitted = match facts.admission() {
            Admission::Members(admitted) => admitted,
            Admission::Nobody => return Err(user_access::not_admitted(agent)),
            Admission::Unknown => return Err(user_access::unknown(agent)),
        };
        let places: Vec<Place> = places(admitted).collect();
        let (member, access) = self.access(&login, places.clone(), share, MAX_AGE).await?;
        let known: HashMap<_, _> = places.into_iter().zip(access).collect();
        let user =
            LoginUser::of(&member, (agent, &facts), admitted, |place| known.get(place).copied().flatten());
        user.map(|user| (user, facts.user_services().clone())).ok_or_else(|| user_access::not_admitted(agent))
    }

    /// Returns a login, which another replica may have begun.
    async fn find(&self, token: &SecretString, address: IpAddr) -> Result<Arc<Login>, RequestError> {
        let load = async {
            self.unknown.check(address)?;
            let record = self.source.load(token).await?;
            let Some(LoginRecord { tokens, end }) = record else {
                self.unknown.count(address).await?;
                return Err(login_ended());
            };
            // The replica at which it began may have stopped.
            self.ends.add_again(token.clone(), end);
            Ok(Arc::new(Login::new(token.clone(), tokens, end)))
        };
        let found = self.known.try_get_with(TokenHash::of(token), load).await;
        found.map_err(|error: Arc<RequestError>| (*error).clone())
    }

    /// Begins the login of the user of new tokens. Returns the token of the login.
    async fn begin(&self, tokens: Tokens) -> Result<SecretString, RequestError> {
        let random: [u8; 32] = rand::random();
        let token = SecretString::from(format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(random)));
        let end = SystemTime::now() + SESSION_TTL;
        // Tokens that expire soon are renewed with the first question, and are then written into the record.
        if !self.source.begin(&token, &tokens, end).await {
            self.source.revoke(&tokens).await;
            return Err(unavailable("kas does not reach Redis, which has the logins"));
        }
        let login = Arc::new(Login::new(token.clone(), tokens, end));
        match login.access(&self.source, Vec::new(), BudgetShare::UnknownCallers, MAX_AGE).await {
            Ok(_) => {
                self.ends.add(token.clone(), end);
                self.known.insert(TokenHash::of(&token), login).await;
                Ok(token)
            }
            Err(error) => {
                self.source.remove(&token).await;
                self.source.revoke(&login.tokens().await).await;
                Err(error)
            }
        }
    }

    /// Returns the user of a login and its access to these places. A login whose tokens GitLab refuses has ended.
    async fn access(
        &self,
        login: &Arc<Login>,
        places: Vec<Place>,
        share: BudgetShare,
        max_age: Duration,
    ) -> Result<Access, RequestError> {
        if SystemTime::now() >= login.end {
            // The record stays, because the clock of this replica may be ahead: `end_due` asks the store for the end.
            return Err(login_ended());
        }
        let result = login.access(&self.source, places, share, max_age).await;
        if let Err(error) = &result
            && error.reason == Reason::Unauthorized
        {
            self.known.remove(&TokenHash::of(login.token())).await;
            // Another replica may have a login that goes on.
            if let Ok(Some(record)) = self.source.load(login.token()).await
                && login.has(&record.tokens).await
            {
                self.source.remove(login.token()).await;
            }
        }
        result
    }

    /// Returns the connected agents that a user of a login may use.
    ///
    /// # Errors
    ///
    /// As [`Self::user`].
    pub(crate) async fn agents(
        &self,
        token: &SecretString,
        address: IpAddr,
    ) -> Result<LoginAgents, RequestError> {
        let login = self.find(token, address).await?;
        let list = self.facts.list().await;
        let admitting: Vec<_> = list
            .agents
            .iter()
            .filter_map(|(agent, facts)| match facts.admission() {
                Admission::Members(admitted) => Some((*agent, facts, admitted)),
                Admission::Nobody | Admission::Unknown => None,
            })
            .collect();
        let lists = admitting.iter().map(|(.., admitted)| places(admitted).collect());
        let (asked, is_complete) = places_in_turns(lists.collect(), MAX_PLACES_OF_LIST);
        let missing = missing_agents(list.missing.clone(), is_complete);
        let (member, access) =
            self.access(&login, asked.clone(), BudgetShare::KnownCallers, self.source.ttl).await?;
        let known: HashMap<_, _> = asked.into_iter().zip(access).collect();
        let agents = admitting.into_iter().filter_map(|(id, facts, admitted)| {
            let access = |place: &Place| known.get(place).copied().flatten();
            let user = LoginUser::of(&member, (id, facts), admitted, access)?;
            Some(LoginAgent { name: facts.name(), user, services: facts.user_services().clone() })
        });
        Ok(LoginAgents { agents: agents.collect(), missing })
    }

    /// Authenticates the user of a login.
    ///
    /// # Errors
    ///
    /// As [`Self::user`].
    pub(crate) async fn authenticate(
        &self,
        token: &SecretString,
        address: IpAddr,
    ) -> Result<AuthenticatedUser, RequestError> {
        let login = self.find(token, address).await?;
        let (member, _) = self.access(&login, Vec::new(), BudgetShare::KnownCallers, self.source.ttl).await?;
        let grant = login.grant(&self.source, &member);
        Ok(AuthenticatedUser {
            grant,
            issuer: LOGIN_ISSUER.to_owned(),
            username: member.username,
            expires: login.end,
        })
    }

    /// Begins a login at GitLab, which sends the browser back to `redirect`.
    pub(crate) fn begin_login(&self, redirect: String) -> LoginRequest {
        let request = AuthorizationRequest::new(redirect);
        let state = serde_json::to_value(&request).expect("its values are texts");
        LoginRequest { url: self.source.application.url(&request), state }
    }

    /// Completes a login. Returns its token, or `None` if `state` and `query` are not of one login.
    pub(crate) async fn complete_login(
        &self,
        state: Value,
        query: &str,
        address: IpAddr,
    ) -> Result<Option<SecretString>, UserLoginError> {
        let application = &self.source.application;
        let Ok(request) = serde_json::from_value::<AuthorizationRequest>(state) else { return Ok(None) };
        let Some(code) = application.code(&request, query) else { return Ok(None) };
        let code = code.map_err(failure)?;
        self.unknown.check(address).map_err(UserLoginError::Limited)?;
        let client = application.with_secret().await.map_err(failure)?;
        let tokens = match request.exchange(&client, &code).await {
            Ok(tokens) => tokens,
            Err(error) => {
                if matches!(error, LoginError::Refused(_)) {
                    // The answer was not limited: the next one is.
                    drop(self.unknown.count(address).await);
                }
                return Err(failure(error));
            }
        };
        match self.begin(tokens).await {
            Ok(token) => Ok(Some(token)),
            Err(error) if error.reason == Reason::IdentityUnavailable => {
                Err(UserLoginError::Unavailable(error.message))
            }
            Err(error) => Err(UserLoginError::Refused(error.message)),
        }
    }

    /// Ends a login, and revokes its tokens at GitLab. If the future is dropped, this goes on.
    pub(crate) async fn log_out(&self, token: &SecretString) {
        let (logins, token) = (self.clone(), token.clone());
        self.ends.remove(&token);
        let ended = tokio::spawn(async move {
            let known = logins.forget(&token).await;
            // Another replica may have renewed the tokens.
            let stored = logins.source.load(&token).await.ok().flatten().map(|record| record.tokens);
            logins.source.remove(&token).await;
            let tokens = match (stored, known) {
                (Some(tokens), _) => Some(tokens),
                (None, Some(login)) => Some(login.tokens().await),
                (None, None) => None,
            };
            if let Some(tokens) = tokens {
                logins.source.revoke(&tokens).await;
            }
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "logout not completed");
        }
    }
}

impl LoginSource {
    /// Writes the record of a login that begins. Returns whether it is written.
    async fn begin(&self, token: &SecretString, tokens: &Tokens, end: SystemTime) -> bool {
        let record = LoginRecord { tokens: tokens.clone(), end }.seal(token);
        let id = record::id(token);
        // A login is the only one of its holder: it cannot end another one.
        let holder = SessionHolder(TokenHash::of(token).digest());
        let session = NewSession { id, holder, record, ttl: SESSION_TTL };
        let written = self.store.begin_session(session, LIMITS).await;
        if let Err(error) = &written {
            tracing::warn!(%error, "login at GitLab not written to the store");
        }
        written.is_ok()
    }

    /// Writes renewed tokens into the record of a login, which keeps its end. Returns false if there is no record: the login has ended, or
    /// the store has lost it.
    async fn replace(
        &self,
        token: &SecretString,
        tokens: &Tokens,
        end: SystemTime,
    ) -> Result<bool, StoreError> {
        let record = LoginRecord { tokens: tokens.clone(), end }.seal(token);
        self.store.replace_session(record::id(token), record).await
    }

    /// Removes the record of a login.
    async fn remove(&self, token: &SecretString) {
        if let Err(error) = self.store.end_sessions(EndedSessions::One(record::id(token))).await {
            tracing::debug!(%error, "record of a login at GitLab not removed");
        }
    }

    /// Removes the record of a login. Returns its tokens, unless another replica has removed it.
    async fn take(&self, token: &SecretString) -> Result<Option<Tokens>, StoreError> {
        let id = record::id(token);
        let Some(record) = self.store.session(id).await? else { return Ok(None) };
        let ended = self.store.end_sessions(EndedSessions::One(id)).await?;
        Ok(LoginRecord::open(token, record).filter(|_| ended > 0).map(|record| record.tokens))
    }

    /// Lets GitLab forget tokens. The refresh token is revoked with the access token.
    async fn revoke(&self, tokens: &Tokens) {
        if let Err(error) = self.application.revoke(tokens.token.expose_secret()).await {
            tracing::debug!(%error, "tokens of a login not revoked at GitLab");
        }
    }

    /// Reads the record of a login.
    async fn load(&self, token: &SecretString) -> Result<Option<LoginRecord>, RequestError> {
        let record = self.store.session(record::id(token)).await;
        let record = record.map_err(|_| unavailable("kas does not reach Redis, which has the logins"))?;
        Ok(record.and_then(|record| LoginRecord::open(token, record)))
    }

    /// Replaces tokens by those of the store, if these are others: another replica has renewed them. Returns whether they are.
    async fn reload(&self, token: &SecretString, tokens: &mut Tokens) -> Result<bool, RequestError> {
        let Some(record) = self.load(token).await? else { return Ok(false) };
        let is_other = TokenHash::of(&record.tokens.token) != TokenHash::of(&tokens.token);
        if is_other {
            *tokens = record.tokens;
        }
        Ok(is_other)
    }
}

impl LoginUser {
    /// Describes a user for an agent, or returns `None` if it is at least a developer in none of the places of the list.
    fn of(
        member: &Member,
        (agent, facts): (AgentId, &AgentFacts),
        admitted: &AdmittedUsers,
        access: impl Fn(&Place) -> Option<PlaceAccess>,
    ) -> Option<Self> {
        let of_developer = |access: PlaceAccess| access.role().map(|_| (access.id, access.roles()));
        let projects = admitted.projects.iter().filter_map(|path| access(&Place::Project(path.clone())));
        let projects: Vec<_> = projects.filter_map(of_developer).collect();
        let groups = admitted.groups.iter().filter_map(|path| {
            let above = Place::with_groups_above(path).filter_map(|group| access(&group));
            Some(access(&Place::Group(path.clone()))?.inherited(above))
        });
        let groups: Vec<_> = groups.filter_map(of_developer).collect();
        (!projects.is_empty() || !groups.is_empty()).then(|| Self {
            agent,
            id: member.id,
            username: member.username.clone(),
            config_project: facts.project_id(),
            mode: admitted.access_as,
            projects,
            groups,
        })
    }
}

/// Returns the reason for which agents may be missing in a list of agents with this error, about some or all of their places.
fn missing_agents(unreadable: Option<String>, has_all_places: bool) -> Option<MissingAgents> {
    let too_many = (!has_all_places).then(|| {
        format!("user_access of the agents names more than {MAX_PLACES_OF_LIST} projects and groups")
    });
    MissingAgents::new(unreadable, too_many)
}

/// Returns the name of a user as a caller. GitLab is not trusted to send a short one.
pub(crate) fn caller_name(username: &str) -> String {
    let name = username.chars().filter(|c| !c.is_control()).take(255);
    format!("gitlab:user:{}", name.collect::<String>())
}

fn failure(error: LoginError) -> UserLoginError {
    let text = error.to_string();
    match error {
        LoginError::Unavailable(_) => UserLoginError::Unavailable(text),
        LoginError::Refused(_) => UserLoginError::Refused(text),
        LoginError::Failed(_) => UserLoginError::Failed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_about_some_places_is_truncated_and_not_unreadable() {
        let missing = missing_agents(None, false).unwrap();
        assert_eq!(missing.unreadable(), None);
        assert!(missing.into_text().contains("more than 2000 projects and groups"));
        let away = || Some("Redis was not reached yet".to_owned());
        assert!(missing_agents(away(), false).unwrap().unreadable().is_some());
        assert!(missing_agents(away(), true).unwrap().unreadable().is_some());
        assert_eq!(missing_agents(None, true), None);
    }
}
