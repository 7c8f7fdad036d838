//! What was asked, out of a request: the path and its question, percent signs undone.

use kpat_http::{Refusal, Request};
use std::collections::HashMap;

/// A request that was understood.
#[derive(Debug, Default)]
pub struct Question {
    head: Request,
    /// Without the query, decoded.
    pub path: String,
    query: HashMap<String, String>,
}

impl Question {
    /// Errors: a body, which no question has, and addresses that are no text.
    pub fn of(head: Request) -> Result<Question, Refusal> {
        if head.body_bytes > 0 {
            return Err(Refusal(400, "a request here has no body"));
        }
        let text = Refusal(400, "the address is not UTF-8");
        let path = head.path().ok_or(text)?;
        let query = head.query().ok_or(text)?.into_iter().collect();
        Ok(Question { head, path, query })
    }

    pub fn method(&self) -> &str {
        &self.head.method
    }

    /// The connection is for further questions.
    pub fn stays(&self) -> bool {
        self.head.stays
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// See [`Request::is_for_this_machine`].
    pub fn is_for_this_machine(&self) -> bool {
        self.head.is_for_this_machine()
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }
}
