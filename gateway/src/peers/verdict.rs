//! The answer to "do you hold this agent".

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use proto::{Reason, header};

use super::{
    seal::{Seal, Secret},
    stamp::STAMP,
};

/// What cannot stand in a header, and what marks it.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

const HOLDS: &str = "holds";
const NO_SEAL: &str = "-";

/// Longest message that is read.
const MAX_MESSAGE: usize = 512;

/// What a replica says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send me the request; or, to a greeting or a call, it is as you wish.
    Holds,
    /// Do not.
    Declines {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
}

/// Why an answer cannot be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It is not one.
    Garbage,
    /// It is not sealed for this question.
    Untrusted,
}

impl Verdict {
    /// As it travels. `seal`: what proves it, and the question's seal.
    pub fn encode(&self, seal: Option<(&Secret, &Seal)>) -> HeaderMap {
        let (word, message) = match self {
            Self::Holds => (HOLDS, String::new()),
            Self::Declines { reason, message } => {
                (reason.as_str(), utf8_percent_encode(message, ESCAPED).to_string())
            }
        };
        let seal = seal.map(|(secret, question)| secret.seal_answer(question, &[word, &message]));
        let seal = seal.map_or_else(|| NO_SEAL.to_owned(), |seal| BASE64_URL_SAFE_NO_PAD.encode(seal.0));
        let mut headers = HeaderMap::new();
        let stamp = HeaderValue::try_from(format!("v1 {word} {seal}"));
        headers.insert(STAMP, stamp.expect("words are ASCII"));
        headers.insert(header::ERROR_MESSAGE, HeaderValue::try_from(message).expect("it is escaped"));
        headers
    }

    /// Reads what [`Verdict::encode`] wrote. `seal`: the secret, and the seal of the question that it must answer.
    pub fn decode(headers: &HeaderMap, seal: Option<(&Secret, &Seal)>) -> Result<Self, Doubt> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let words: Vec<&str> = text(STAMP.as_str()).ok_or(Doubt::Garbage)?.split(' ').collect();
        let ["v1", word, proof] = words[..] else {
            return Err(Doubt::Garbage);
        };
        let message = text(header::ERROR_MESSAGE.as_str()).unwrap_or_default();
        if let Some((secret, question)) = seal {
            let proof = BASE64_URL_SAFE_NO_PAD.decode(proof).ok().and_then(|proof| proof.try_into().ok());
            let proof = Seal(proof.ok_or(Doubt::Untrusted)?);
            if !secret.verify_answer(question, &[word, message], &proof) {
                return Err(Doubt::Untrusted);
            }
        }

        if word == HOLDS {
            return Ok(Self::Holds);
        }
        let reason = word.parse().map_err(|_| Doubt::Garbage)?;
        let message = percent_decode_str(message).decode_utf8_lossy();
        let message = message.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect();
        Ok(Self::Declines { reason, message })
    }
}

#[cfg(test)]
mod tests {
    use base64::prelude::BASE64_STANDARD;

    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::parse(&BASE64_STANDARD.encode([byte; 32])).unwrap()
    }

    fn declines() -> Verdict {
        Verdict::Declines { reason: Reason::UnknownService, message: "no: 100 % größer".to_owned() }
    }

    #[test]
    fn it_reads_back_what_it_writes() {
        for verdict in [Verdict::Holds, declines()] {
            assert_eq!(Verdict::decode(&verdict.encode(None), None).unwrap(), verdict);
            let (secret, question) = (secret(1), Seal([7; 32]));
            let headers = verdict.encode(Some((&secret, &question)));
            assert_eq!(Verdict::decode(&headers, Some((&secret, &question))).unwrap(), verdict);
        }
    }

    #[test]
    fn it_is_believed_as_the_answer_to_its_question_only() {
        let (ours, question) = (secret(1), Seal([7; 32]));
        let believed = |headers: &HeaderMap| Verdict::decode(headers, Some((&ours, &question)));
        assert_eq!(believed(&Verdict::Holds.encode(None)), Err(Doubt::Untrusted));
        let other = Seal([8; 32]);
        assert_eq!(believed(&Verdict::Holds.encode(Some((&ours, &other)))), Err(Doubt::Untrusted));
        assert_eq!(believed(&Verdict::Holds.encode(Some((&secret(2), &question)))), Err(Doubt::Untrusted));
        let mut headers = declines().encode(Some((&ours, &question)));
        headers.insert(header::ERROR_MESSAGE, HeaderValue::from_static("yes"));
        assert_eq!(believed(&headers), Err(Doubt::Untrusted));
    }

    #[test]
    fn anything_else_is_garbage() {
        for bad in ["", "v1", "v2 holds -", "v1 maybe -", "v1 holds - more", "holds"] {
            let headers = HeaderMap::from_iter([(STAMP, HeaderValue::from_static(bad))]);
            assert_eq!(Verdict::decode(&headers, None), Err(Doubt::Garbage), "{bad}");
        }
        assert_eq!(Verdict::decode(&HeaderMap::new(), None), Err(Doubt::Garbage));
    }
}
