//! A lock that virtual CPUs wait for.

mod futex;
mod queued;
mod ticket;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};

use super::waiters;
use crate::cache::{Access, Picoseconds};
use crate::kernel::LockKind;
use crate::machine::{clock, is_running, kind_of_locks, sleep, wake};
use crate::step::{data_at, look_at, operate, operate_at, operate_only};

/// The largest size of a value in a lock, in bytes, for which each access is told as one to the whole value: two lines.
const MOST_TOLD: usize = 128;

/// A lock. To take the lock and to let it go are steps. A CPU that waits is woken when the holder lets the lock go. The
/// woken CPU may find that another CPU has taken the lock again, as with the lock of `std`. If CPUs have clocks of
/// their own, the lock behaves and costs as one of [`LockKind`].
#[derive(Debug, Default)]
pub struct Mutex<T> {
    value: std::sync::Mutex<T>,
}

/// The hold of a [`Mutex`]. The holder drops the guard to let the lock go.
pub struct MutexGuard<'a, T> {
    pub(super) mutex: &'a Mutex<T>,
    /// The code that took the lock.
    at: &'static Location<'static>,
    /// `None` only once the guard has let go.
    value: Option<std::sync::MutexGuard<'a, T>>,
}

/// A lock that a CPU waits for, as the kinds of locks see it.
struct Wanted<'a> {
    /// Where the lock lies.
    address: usize,
    /// The code that wants the lock.
    at: &'static Location<'static>,
    is_held: &'a dyn Fn() -> bool,
    /// Takes the lock if it is not held.
    take: &'a mut dyn FnMut() -> bool,
}

impl<T> Mutex<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { value: std::sync::Mutex::new(value) }
    }

    /// The address under which [`waiters`] keeps what is known of the lock.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    #[track_caller]
    fn guard<'a>(&'a self, value: std::sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { mutex: self, at: Location::caller(), value: Some(value) }
    }

    /// Takes the lock if it is not held, without a step.
    fn take(&self) -> Option<std::sync::MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until the lock is free, and takes it.
    ///
    /// # Errors
    /// None: the lock does not poison. The result has `std`'s form.
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        if !is_running() {
            return Ok(self.guard(self.value.lock().unwrap_or_else(PoisonError::into_inner)));
        }
        if let Some(kind) = kind_of_locks() {
            return Ok(self.lock_as(kind));
        }
        loop {
            if let Ok(guard) = self.try_lock() {
                return Ok(guard);
            }
            // Without a second try, this CPU could sleep forever:
            // 1. This CPU tries, and finds the lock held.
            // 2. During the step of that try the holder lets the lock go, and finds no CPU that sleeps.
            // 3. This CPU sleeps, and no CPU wakes it.
            // Between the second try and the sleep there is no step.
            match self.take() {
                None => {
                    waiters::at(self.address(), |waiters| waiters.sleepers.push_back(crate::cpu()));
                    sleep(None);
                }
                Some(value) => {
                    operate_only(self.address(), Access::Update, Location::caller(), || ());
                    return Ok(self.guard(value));
                }
            }
        }
    }

    /// Waits and pays as with a lock of this kind.
    #[track_caller]
    fn lock_as(&self, kind: LockKind) -> MutexGuard<'_, T> {
        let mut value = None;
        let wanted = &mut Wanted {
            address: self.address(),
            at: Location::caller(),
            is_held: &|| self.take().is_none(),
            take: &mut || {
                value = self.take();
                value.is_some()
            },
        };
        match kind {
            LockKind::Futex => futex::lock(wanted),
            LockKind::Queued => queued::lock(wanted),
            LockKind::Ticket => ticket::lock(wanted),
        }
        let at = wanted.at;
        MutexGuard { mutex: self, at, value }
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// The lock is not free.
    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let at = Location::caller();
        let tried = operate(self, Access::Update, at, || {
            let has_queue = waiters::known(self.address(), |waiters| waiters.has_queue()).unwrap_or(false);
            let value = if has_queue { None } else { self.take() };
            value.map(|value| MutexGuard { mutex: self, at, value: Some(value) })
        });
        tried.ok_or(TryLockError::WouldBlock)
    }
}

impl<T> MutexGuard<'_, T> {
    /// Tells that the value is read or changed, if the value is small. The holder of a larger value itself tells which
    /// parts it touches ([`reads`](crate::reads), [`changes`](crate::changes)).
    #[inline]
    fn told(&self, access: Access) {
        if const { size_of::<T>() <= MOST_TOLD }
            && let Some(value) = &self.value
        {
            data_at(&**value, access, self.at);
        }
    }

    /// Lets the lock go and wakes the CPUs that sleep for it, without a step. For CPUs without clocks.
    fn let_go(&mut self) {
        if self.value.take().is_some() && is_running() {
            let waiters = waiters::known(self.mutex.address(), |waiters| std::mem::take(&mut waiters.sleepers));
            waiters.into_iter().flatten().for_each(|cpu| _ = wake(cpu));
        }
    }

    /// Lets the lock go without a step afterwards, for a CPU that falls asleep next. Another CPU may go on before
    /// `first` is called, but none between `first` and the return.
    pub(super) fn release(&mut self, first: impl FnOnce()) {
        let Some(kind) = kind_of_locks() else {
            first();
            return self.let_go();
        };
        let is_marked = operate_only(self.mutex.address(), access_of_unlock(kind), self.at, || {
            first();
            self.value.take().is_some() && unlock(kind, self.mutex.address())
        });
        if is_marked {
            futex::wake_one(self.mutex.address());
        }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        let Some(kind) = kind_of_locks() else {
            return operate(self.mutex, Access::Store, self.at, || self.let_go());
        };
        if self.value.is_some() {
            let is_marked = operate(self.mutex, access_of_unlock(kind), self.at, || {
                self.value = None;
                unlock(kind, self.mutex.address())
            });
            if is_marked {
                futex::wake_one(self.mutex.address());
                crate::step::step();
            }
        }
    }
}

/// Notes that the lock at this address is not held any more. Returns whether a CPU that sleeps for it is to be woken.
fn unlock(kind: LockKind, address: usize) -> bool {
    kind == LockKind::Futex && futex::unlock(address)
}

/// How a lock is let go.
const fn access_of_unlock(kind: LockKind) -> Access {
    match kind {
        LockKind::Futex => Access::Update,
        LockKind::Queued | LockKind::Ticket => Access::Store,
    }
}

impl Wanted<'_> {
    /// One operation on the lock's line, which does this.
    fn access<R>(&mut self, access: Access, does: impl FnOnce(&mut Self) -> R) -> R {
        operate_at(self.address, access, self.at, || does(self))
    }

    /// Looks at the lock's line until `is_so` returns true, or until `until`. Returns what `is_so` returned last.
    fn look_until(&mut self, until: Option<Picoseconds>, is_so: impl FnMut(&mut Self) -> bool) -> bool {
        let address = self.address;
        self.look_at(address, until, is_so)
    }

    /// The same at another line.
    fn look_at(
        &mut self,
        address: usize,
        until: Option<Picoseconds>,
        mut is_so: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        loop {
            let at = self.at;
            let look = || {
                let found = is_so(self);
                Some(found).filter(|found| *found || until.is_some_and(|until| clock() >= until))
            };
            if let Some(found) = look_at(address, at, until, look) {
                return found;
            }
        }
    }

    fn must_take(&mut self) {
        assert!((self.take)(), "the lock's queue lets one in at a time");
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.told(Access::Load);
        self.value.as_ref().expect("a guard holds until it is dropped")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.told(Access::Update);
        self.value.as_mut().expect("a guard holds until it is dropped")
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
