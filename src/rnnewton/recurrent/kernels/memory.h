// Memory that is kept: fresh pages cost as much as the arithmetic done in them, so blocks go back to a shelf and are
// handed out again. And the loop over tiles on several threads.
#pragma once
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "vector.h"

namespace rn {

class Shelf {
   public:
    static Shelf& only() {
        static Shelf* shelf = new Shelf;  // never destroyed: blocks may come back while the process ends
        return *shelf;
    }
    std::pair<void*, size_t> take(size_t size) {
        std::lock_guard<std::mutex> lock(mutex_);
        ++clock_;
        size_t best = blocks_.size();
        for (size_t i = 0; i < blocks_.size(); ++i)
            if (blocks_[i].size >= size && blocks_[i].size <= size + size / 2 + (1 << 16) && (best == blocks_.size() || blocks_[i].size < blocks_[best].size)) best = i;
        if (best < blocks_.size()) {
            Block block = blocks_[best];
            blocks_.erase(blocks_.begin() + best);
            return {block.data, block.size};
        }
        // A new size: what nobody has asked for lately goes back to the system.
        clear(clock_ > patience ? clock_ - patience : 0);
        const size_t page = size >= (1 << 21) ? 1 << 21 : 4096;
        size = (size + page - 1) / page * page;
        void* data = std::aligned_alloc(page, size);
        if (!data) clear(clock_), data = std::aligned_alloc(page, size);
        if (!data) throw std::bad_alloc();
#if defined(__linux__)
        if (page > 4096) madvise(data, size, MADV_HUGEPAGE);
#endif
        return {data, size};
    }
    void give(void* data, size_t size) {
        std::lock_guard<std::mutex> lock(mutex_);
        blocks_.push_back({data, size, ++clock_});
    }
    void release() {
        std::lock_guard<std::mutex> lock(mutex_);
        clear(clock_);
    }

   private:
    struct Block {
        void* data;
        size_t size;
        uint64_t last;
    };
    static constexpr uint64_t patience = 64;
    std::vector<Block> blocks_;
    std::mutex mutex_;
    uint64_t clock_ = 0;

    void clear(uint64_t before) {
        for (size_t i = blocks_.size(); i-- > 0;)
            if (blocks_[i].last <= before) {
                std::free(blocks_[i].data);
                blocks_.erase(blocks_.begin() + i);
            }
    }
};

class Memory {
   public:
    Memory() = default;
    explicit Memory(size_t size) {
        if (size) std::tie(data_, size_) = Shelf::only().take(size);
    }
    Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Memory() {
        if (data_) Shelf::only().give(data_, size_);
    }
    char* data() const { return (char*)data_; }
    size_t size() const { return size_; }

   private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

// Calls one(i) for i < count, each once, on up to `threads` threads of which the caller is one. What an item computes
// must not depend on which thread takes it. Threads end with the call: nothing waits in the background or after a fork.
template <class One>
void parallel(int count, int threads, One&& one) {
    std::atomic<int> next{0};
    auto run = [&] {
        FlushDenormals flush;
        for (int i; (i = next.fetch_add(1)) < count;) one(i);
    };
    std::vector<std::thread> others;
    for (int i = 1; i < std::min(threads, count); ++i) {
        try {
            others.emplace_back(run);
        } catch (const std::system_error&) {
            break;  // no more threads to be had: the others do the work
        }
    }
    run();
    for (auto& thread : others) thread.join();
}

}  // namespace rn
