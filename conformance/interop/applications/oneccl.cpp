// oneCCL's collectives on host memory: allreduce, broadcast, alltoall. Each rank checks every number.
// usage, as two or more ranks of an Open MPI job: oneccl FILE, by which ranks find the first one
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "oneapi/ccl.hpp"

static ccl::shared_ptr_class<ccl::kvs> store_of(int rank, const std::string &file) {
    ccl::kvs::address_type address;
    if (rank == 0) {
        auto kvs = ccl::create_main_kvs();
        address = kvs->get_address();
        std::ofstream(file + ".new", std::ios::binary).write(address.data(), address.size());
        std::rename((file + ".new").c_str(), file.c_str());
        return kvs;
    }
    for (;;) {
        std::ifstream written(file, std::ios::binary);
        if (written.read(address.data(), address.size()))
            break;
        usleep(20000);
    }
    return ccl::create_kvs(address);
}

int main(int argc, char **argv) {
    const char *of_rank = std::getenv("OMPI_COMM_WORLD_RANK"), *of_ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
    if (argc != 2 || !of_rank || !of_ranks)
        return 2;
    const int rank = std::atoi(of_rank), ranks = std::atoi(of_ranks);
    setenv("CCL_ATL_TRANSPORT", "ofi", 1);
    // Ranks are told how many they are, not asked of a launcher.
    setenv("CCL_PROCESS_LAUNCHER", "none", 1);
    setenv("CCL_LOCAL_RANK", "0", 1);
    setenv("CCL_LOCAL_SIZE", "1", 1);
    ccl::init();
    auto communicator = ccl::create_communicator(ranks, rank, store_of(rank, argv[1]));
    uint64_t checks = 0, wrong = 0;
    const auto check = [&](int64_t got, int64_t wanted) {
        checks++;
        wrong += got != wanted;
    };
    for (size_t length : {1u, 64u, 4096u, 100000u, 1000000u}) {
        std::vector<int64_t> mine(length), all(length);
        for (size_t i = 0; i < length; i++)
            mine[i] = (rank + 1) * 1000 + int64_t(i);
        ccl::allreduce(mine.data(), all.data(), length, ccl::reduction::sum, communicator).wait();
        for (size_t i = 0; i < length; i++)
            check(all[i], 1000 * ranks * (ranks + 1) / 2 + ranks * int64_t(i));
        ccl::broadcast(mine.data(), length, 0, communicator).wait();
        for (size_t i = 0; i < length; i++)
            check(mine[i], 1000 + int64_t(i));
        std::vector<int64_t> out(length * ranks), in(length * ranks);
        for (int to = 0; to < ranks; to++)
            for (size_t i = 0; i < length; i++)
                out[to * length + i] = rank * 100 + to + int64_t(i) * 10000;
        ccl::alltoall(out.data(), in.data(), length, communicator).wait();
        for (int from = 0; from < ranks; from++)
            for (size_t i = 0; i < length; i++)
                check(in[from * length + i], from * 100 + rank + int64_t(i) * 10000);
    }
    ccl::barrier(communicator);
    std::printf("oneccl: %lu checks, %lu wrong\n", checks, wrong);
    return wrong != 0;
}
