//! A login that this replica knows: the tokens of GitLab, and the answers of GitLab about its user.
#![expect(
    clippy::disallowed_types,
    reason = "the requests of one person share one question, for at most 10 s"
)]

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use access::{Caller, Grant, RequestError, token::TokenHash, unauthorized};
use futures_util::future::try_join_all;
use http::StatusCode;
use oidc::{LoginError, Tokens};
use proto::Reason;
use secrecy::SecretString;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    LoginSource,
    members::{self, MAX_PLACES, Member, MemberAnswer, NoAnswer, Place, PlaceAccess},
};
use crate::{BudgetShare, Credential, Endpoint, GitLabError, in_flight::Subject};

/// The time that a request waits for GitLab, with all attempts and the questions of other requests.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time from the first question to the last answer.
const QUESTION: Duration = Duration::from_secs(60);
/// The most places whose access is remembered.
const MAX_KNOWN: usize = 20_000;
/// The questions that are sent at the same time.
const CONCURRENT: usize = 4;
/// An access token is renewed this long before it expires.
const RENEWAL: Duration = Duration::from_secs(60);
/// The time in which another replica that has renewed the tokens writes them to the store, and the pause between two looks.
const OTHER_RENEWAL: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(250);
/// `Retry-After` while GitLab does not answer.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// The error with which an OAuth server refuses a refresh token (RFC 6749 section 5.2). Others are about kas.
const INVALID_GRANT: &str = "invalid_grant";
/// The message of a 403 of GraphQL about a user who is deactivated, or has to accept new terms or to change a password: in each case a
/// new login is needed.
const NO_API: &str = "API not accessible for user";

/// A login of a user.
#[derive(Debug)]
pub(super) struct Login {
    /// The token of the login, which stands for those of GitLab.
    token: SecretString,
    /// The time at which the login ends.
    pub(super) end: SystemTime,
    /// The answers of GitLab.
    answers: parking_lot::Mutex<Answers>,
    /// Held while GitLab is asked.
    question: Arc<Mutex<()>>,
    tokens: Mutex<StoredTokens>,
    /// The user has logged out, the time of the login is over, or the store does not have it any more.
    has_ended: AtomicBool,
    /// The rights of the user that are of no agent.
    grant: parking_lot::Mutex<Option<Arc<Grant>>>,
}

/// The tokens of a login.
#[derive(Debug)]
struct StoredTokens {
    tokens: Tokens,
    /// The store does not have these tokens yet, because it did not respond.
    unsaved: bool,
}

#[derive(Debug, Default)]
struct Answers {
    member: Option<Confirmed<Member>>,
    places: HashMap<Place, Confirmed<Option<PlaceAccess>>>,
}

/// A part of an answer of GitLab, with its time.
#[derive(Debug)]
struct Confirmed<T> {
    value: T,
    at: Instant,
}

/// The reason for which GitLab does not answer a question.
enum Unanswered {
    /// The access token is not valid.
    Refused,
    Failed(RequestError),
}

/// A user, and its access to places in their order.
pub(super) type Access = (Member, Vec<Option<PlaceAccess>>);

impl Unanswered {
    fn late() -> Self {
        Self::Failed(unavailable("it did not respond in time"))
    }

    /// Returns the error for a token that GitLab has accepted before.
    fn into_error(self) -> RequestError {
        match self {
            Self::Failed(error) => error,
            Self::Refused => unavailable("it has refused a token that was valid"),
        }
    }
}

impl Answers {
    /// Returns the user and its access to these places, if answers that are not older than `max_age` have all of them.
    fn known(&self, places: &[Place], max_age: Duration) -> Option<Access> {
        let member = self.member.as_ref().filter(|member| member.at.elapsed() < max_age)?;
        let known = |place| self.places.get(place).filter(|access| access.at.elapsed() < max_age);
        let access = places.iter().map(|place| known(place).map(|access| access.value));
        Some((member.value.clone(), access.collect::<Option<_>>()?))
    }

    /// Returns those of these places that no answer has which is not older than `max_age`.
    fn unknown(&self, places: &[Place], max_age: Duration) -> Vec<Place> {
        let is_known =
            |place: &&Place| self.places.get(*place).is_some_and(|access| access.at.elapsed() < max_age);
        places.iter().filter(|place| !is_known(place)).cloned().collect()
    }

    /// Adds the answer to a question, and removes those that are older than `ttl`.
    fn add(&mut self, question: &[Place], answer: MemberAnswer, ttl: Duration) -> Result<(), RequestError> {
        let MemberAnswer { member, places } = answer;
        if self.member.as_ref().is_some_and(|before| before.value.id != member.id) {
            return Err(unavailable("its answer is about another user"));
        }
        let at = Instant::now();
        // An answer that was valid when a question began is used with the new ones.
        self.places.retain(|_, access| access.at.elapsed() < ttl + QUESTION);
        if self.places.len() > MAX_KNOWN {
            self.places.clear();
        }
        for (place, value) in question.iter().zip(places) {
            self.places.insert(place.clone(), Confirmed { value, at });
        }
        self.member = Some(Confirmed { value: member, at });
        Ok(())
    }
}

impl Login {
    pub(super) fn new(token: SecretString, tokens: Tokens, end: SystemTime) -> Self {
        Self {
            token,
            end,
            answers: parking_lot::Mutex::default(),
            question: Arc::default(),
            tokens: Mutex::new(StoredTokens { tokens, unsaved: false }),
            has_ended: AtomicBool::new(false),
            grant: parking_lot::Mutex::new(None),
        }
    }

    /// Returns the user and its access to these places, by answers of GitLab that are not older than `max_age`.
    ///
    /// # Errors
    ///
    /// * `unauthorized`: GitLab does not accept the tokens of the login any more.
    /// * `identity-unavailable`: GitLab gives no usable answer.
    pub(super) async fn access(
        self: &Arc<Self>,
        source: &Arc<LoginSource>,
        places: Vec<Place>,
        share: BudgetShare,
        max_age: Duration,
    ) -> Result<Access, RequestError> {
        if self.has_ended.load(Relaxed) {
            return Err(login_ended());
        }
        let known = || self.answers.lock().known(&places, max_age);
        if let Some(known) = known() {
            return Ok(known);
        }
        let late = || unavailable("it did not respond in time");
        let end = Instant::now() + TIMEOUT;
        let question = timeout_at(end, Arc::clone(&self.question).lock_owned()).await.map_err(|_| late())?;
        // The question of another request may have been the same.
        if let Some(known) = known() {
            return Ok(known);
        }
        // GitLab accepts a refresh token once: a caller that leaves must not take the new one with it.
        let (login, source) = (Arc::clone(self), Arc::clone(source));
        let asked = tokio::spawn(async move {
            let result = login.query_memberships(&source, &places, share, max_age).await;
            drop(question);
            result
        });
        let result = match timeout_at(end, asked).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(unavailable("the question has failed in kas")),
            Err(_) => Err(late()),
        };
        if let Err(error) = &result
            && error.reason == Reason::Unauthorized
        {
            self.revoke();
        }
        result
    }

    async fn query_memberships(
        &self,
        source: &LoginSource,
        places: &[Place],
        share: BudgetShare,
        max_age: Duration,
    ) -> Result<Access, RequestError> {
        let unknown = self.answers.lock().unknown(places, max_age);
        // Without a place, the question is about the user alone.
        let questions = if unknown.is_empty() { vec![&[][..]] } else { unknown.chunks(MAX_PLACES).collect() };
        let token = self.valid_token(source).await?;
        // The first one finds out whether the token is valid.
        let (first, others) = questions.split_first().expect("there is at least one");
        let (token, answer) = self.query_with_renewal(source, token, first, share).await?;
        self.answers.lock().add(first, answer, source.ttl)?;
        for questions in others.chunks(CONCURRENT) {
            let asked = questions.iter().map(|question| query(source, &token, question, share));
            let answers = timeout(TIMEOUT, try_join_all(asked)).await;
            let answers =
                answers.unwrap_or_else(|_| Err(Unanswered::late())).map_err(Unanswered::into_error)?;
            for (question, answer) in questions.iter().zip(answers) {
                self.answers.lock().add(question, answer, source.ttl)?;
            }
        }
        self.answers
            .lock()
            .known(places, max_age + QUESTION)
            .ok_or_else(|| unavailable("its answer names no user"))
    }

    /// Asks GitLab with a token. If it refuses the token, those of another replica or new ones are tried.
    async fn query_with_renewal(
        &self,
        source: &LoginSource,
        token: SecretString,
        places: &[Place],
        share: BudgetShare,
    ) -> Result<(SecretString, MemberAnswer), RequestError> {
        match query(source, &token, places, share).await {
            Ok(answer) => return Ok((token, answer)),
            Err(Unanswered::Failed(error)) => return Err(error),
            Err(Unanswered::Refused) => {}
        }
        let mut stored = self.tokens.lock().await;
        if !source.reload(&self.token, &mut stored.tokens).await? {
            self.renew(source, &mut stored).await?;
        }
        let token = stored.tokens.token.clone();
        drop(stored);
        match query(source, &token, places, share).await {
            Ok(answer) => Ok((token, answer)),
            Err(Unanswered::Failed(error)) => Err(error),
            Err(Unanswered::Refused) => Err(login_ended()),
        }
    }

    /// Returns an access token that does not expire soon.
    async fn valid_token(&self, source: &LoginSource) -> Result<SecretString, RequestError> {
        let mut stored = self.tokens.lock().await;
        if stored.unsaved {
            self.save(source, &mut stored).await?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if !stored.tokens.is_valid(now + RENEWAL)
            && let Err(error) = self.renew(source, &mut stored).await
            && (error.reason == Reason::Unauthorized || !stored.tokens.is_valid(now))
        {
            return Err(error);
        }
        Ok(stored.tokens.token.clone())
    }

    /// Renews the tokens. GitLab accepts a refresh token once, so that those of another replica, which may just have renewed them, are
    /// waited for before the login ends.
    async fn renew(&self, source: &LoginSource, stored: &mut StoredTokens) -> Result<(), RequestError> {
        if self.has_ended.load(Relaxed) {
            return Err(login_ended());
        }
        let refresh_token = stored.tokens.refresh_token.clone().ok_or_else(login_ended)?;
        let renewed = match source.application.with_secret().await {
            Ok(client) => client.refresh(&refresh_token).await,
            Err(error) => Err(error),
        };
        match renewed {
            Ok(renewed) if self.has_ended.load(Relaxed) => {
                source.revoke(&renewed).await;
                Err(login_ended())
            }
            Ok(renewed) => {
                *stored = StoredTokens { tokens: renewed, unsaved: true };
                self.save(source, stored).await
            }
            Err(LoginError::Refused(error)) if error.error == INVALID_GRANT => {
                let deadline = Instant::now() + OTHER_RENEWAL;
                while Instant::now() < deadline {
                    if source.reload(&self.token, &mut stored.tokens).await? {
                        return Ok(());
                    }
                    sleep(PAUSE).await;
                }
                Err(login_ended())
            }
            Err(error) => Err(unavailable(&error.to_string())),
        }
    }

    /// Writes the tokens of this replica into the record of the login. A login without a record has ended at another replica, or the store
    /// has lost it: no other replica can revoke these tokens.
    async fn save(&self, source: &LoginSource, stored: &mut StoredTokens) -> Result<(), RequestError> {
        match source.replace(&self.token, &stored.tokens, self.end).await {
            Ok(true) => stored.unsaved = false,
            Ok(false) => {
                self.end();
                source.revoke(&stored.tokens).await;
                return Err(login_ended());
            }
            // The next question tries it again.
            Err(error) => {
                tracing::warn!(%error, "renewed tokens of a login at GitLab not written to the store");
            }
        }
        Ok(())
    }

    /// Returns the rights of the user that are of no agent.
    pub(super) fn grant(&self, source: &LoginSource, member: &Member) -> Arc<Grant> {
        let mut grant = self.grant.lock();
        let name = super::caller_name(&member.username);
        if let Some(known) = grant.as_ref() {
            if known.caller.name() == name {
                return Arc::clone(known);
            }
            known.revoked.cancel();
        }
        let in_flight = source.in_flight.of(Subject::User(member.id));
        let new = Arc::new(Grant::new(Caller::of_no_agent(name), in_flight));
        *grant = Some(Arc::clone(&new));
        new
    }

    /// Ends the streams of the page that are of no agent.
    fn revoke(&self) {
        if let Some(grant) = self.grant.lock().take() {
            grant.revoked.cancel();
        }
    }

    /// Ends the login at this replica. Tokens that are being renewed are not stored any more.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Relaxed);
        self.revoke();
    }

    /// Returns the token of the login.
    pub(super) fn token(&self) -> &SecretString {
        &self.token
    }

    /// Returns the tokens as they are now.
    pub(super) async fn tokens(&self) -> Tokens {
        self.tokens.lock().await.tokens.clone()
    }

    /// Returns whether these are the tokens that this replica has.
    pub(super) async fn has(&self, tokens: &Tokens) -> bool {
        TokenHash::of(&self.tokens.lock().await.tokens.token) == TokenHash::of(&tokens.token)
    }
}

async fn query(
    source: &LoginSource,
    token: &SecretString,
    places: &[Place],
    share: BudgetShare,
) -> Result<MemberAnswer, Unanswered> {
    let client = source.client.with_share(share);
    let question = members::question(places);
    let response = client.post(Endpoint::GraphQl, &question, Credential::User(token)).await;
    let body = response.map_err(|error| match error {
        GitLabError::Status { status, message } if is_about_user(status, &message) => Unanswered::Refused,
        error => Unanswered::Failed(unavailable(&error.to_string())),
    })?;
    members::answer(body, places.len()).map_err(|error| match error {
        NoAnswer::Anonymous => Unanswered::Refused,
        NoAnswer::Invalid(what) => Unanswered::Failed(unavailable(&what)),
    })
}

/// Returns whether a refusal is about the token or its user. Any other 403 is about kas: its address, or the scope of the application.
fn is_about_user(status: StatusCode, message: &str) -> bool {
    status == StatusCode::UNAUTHORIZED || (status == StatusCode::FORBIDDEN && message == NO_API)
}

/// Returns the error of a login that has ended.
pub(super) fn login_ended() -> RequestError {
    unauthorized("the login at GitLab has ended: log in again")
}

/// Returns the error of a GitLab that gives no usable answer.
pub(super) fn unavailable(what: &str) -> RequestError {
    let what = format!("kas does not know the rights of this user at GitLab: {what}");
    RequestError::new(Reason::IdentityUnavailable, what).with_retry_after(RETRY_AFTER)
}
