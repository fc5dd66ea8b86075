#include "pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace gk {
namespace {

constexpr auto PATIENCE = std::chrono::microseconds(50);
constexpr int POLLS = 64;  // between two looks at the clock

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Polls until done() or until PATIENCE is over. Returns done().
template <class Done>
bool poll(Done done) {
    const auto end = std::chrono::steady_clock::now() + PATIENCE;
    do {
        for (int i = 0; i < POLLS; i++) {
            if (done()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    return done();
}

struct Job {
    Part part;
    void* context;
    int64_t parts;
};

class Pool {
public:
    explicit Pool(int workers) {
        for (int i = 0; i < workers; i++) threads_.emplace_back([this] { work(); });
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
            round_.fetch_add(1);
        }
        wake_.notify_all();
        for (auto& thread : threads_) thread.join();
    }

    void run(const Job& job) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            job_ = job;
            next_.store(0, std::memory_order_relaxed);
            open_.store(true);
            round_.fetch_add(1);
        }
        if (asleep_.load() > 0) wake_.notify_all();
        take(job);
        // A worker that has not come by now finds the door closed, and nobody waits for it.
        open_.store(false);
        const auto alone = [this] { return inside_.load() == 0; };
        while (!poll(alone)) std::this_thread::yield();
    }

private:
    void take(const Job& job) {
        inside_part = true;
        for (;;) {
            const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
            if (i >= job.parts) break;
            job.part(job.context, i);
        }
        inside_part = false;
    }

    void work() {
        uint64_t seen = 0;
        for (;;) {
            const auto called = [this, seen] { return round_.load() != seen; };
            if (!poll(called)) {
                std::unique_lock<std::mutex> lock(mutex_);
                asleep_.fetch_add(1);
                wake_.wait(lock, called);
                asleep_.fetch_sub(1);
            }
            seen = round_.load();  // before the door: a round that opens later is seen again
            if (stopping_) return;
            inside_.fetch_add(1);
            if (open_.load()) take(job_);
            inside_.fetch_sub(1);
        }
    }

public:
    static thread_local bool inside_part;

private:
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    Job job_{};
    bool stopping_ = false;
    std::atomic<uint64_t> round_{0};
    std::atomic<int> asleep_{0};
    std::atomic<bool> open_{false};
    // On lines of their own: every part is claimed through the first, every worker enters and leaves by the second.
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int> inside_{0};
};

thread_local bool Pool::inside_part = false;

std::mutex one_call;
std::atomic<int> wanted{1};
int made = 1;

// Never destroyed: its threads may be inside a call while the process ends.
Pool*& pool() {
    static Pool* instance = nullptr;
    return instance;
}

}  // namespace

void set_threads(int threads) { wanted = std::max(1, threads); }
int threads() { return wanted; }

void run_parts(int64_t parts, Part part, void* context) {
    if (parts > 1 && wanted > 1 && !Pool::inside_part && one_call.try_lock()) {
        std::lock_guard<std::mutex> lock(one_call, std::adopt_lock);
        if (made != wanted) {
            delete pool();
            made = wanted;
            pool() = new Pool(made - 1);
        }
        pool()->run({part, context, parts});
        return;
    }
    for (int64_t i = 0; i < parts; i++) part(context, i);
}

void* scratch_bytes(Slot slot, size_t bytes) {
    struct Free {
        void operator()(void* p) const { std::free(p); }
    };
    struct Buffer {
        std::unique_ptr<void, Free> memory;
        size_t size = 0;
    };
    static thread_local Buffer buffers[SLOTS];
    Buffer& buffer = buffers[slot];
    if (buffer.size < bytes) {
        const size_t size = (std::max(bytes, 2 * buffer.size) + 63) / 64 * 64;
        buffer.memory.reset();
        buffer.size = 0;
        void* memory = std::aligned_alloc(64, size);
        if (!memory) throw std::bad_alloc();
        buffer.memory.reset(memory);
        buffer.size = size;
    }
    return buffer.memory.get();
}

}  // namespace gk
