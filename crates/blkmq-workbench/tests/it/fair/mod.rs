//! The scheduler `fair` in front of models, on virtual time: the whole path of a request, the limiter, and clients that
//! ask again as soon as they are answered.

mod cached;
mod load;
mod pinning;
mod rounds;
mod shares;
mod singles;
mod tricks;
