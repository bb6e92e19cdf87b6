/* Everything small that a class plan reads, written in one launch: lengths, ragged offsets, page tables. And the rows
 * that the plan leaves as they are: those of padding, and those of queries that have no keys.
 *
 * prepare.ptx is this file as NVRTC compiles it for compute_75; its first line holds the SHA-256 of this file.
 * Every field has eight bytes, so that prepare.py writes them as one row of integers. Numbers of sequences and lengths
 * are those of the call; the plan was built for `bound` sequences, and those beyond the call's have length 0.
 */

struct lengths {           /* of Q, or of K and V */
    const int *cumulative; /* [batch + 1], where the tokens of each sequence begin; or NULL */
    const int *given;      /* [batch], the real lengths; or NULL */
    long long all;         /* the length of every sequence where neither says another */
    int *out;              /* [bound] */
};

struct offsets {          /* of one ragged tensor: where each sequence begins, in elements */
    void *out;            /* [bound + 1] */
    long long multiplier; /* elements from one token to the next, or from one sequence to the next */
    long long kind;       /* TOKENS_OF_Q, TOKENS_OF_KV, READ */
};

/* What offsets count. READ: tokens of Q, of which one is read of each sequence, also of those that have none: these begin
 * at the last token, where they would begin behind the tensor. */
enum { TOKENS_OF_Q, TOKENS_OF_KV, READ };

struct rows {             /* of a tensor that the plan writes, in words of 4 bytes */
    unsigned *out;
    long long multiplier; /* words from one token to the next, or from one sequence to the next */
    long long is_kv;      /* counted in the tokens of K and V */
    long long token, head; /* words from one token, and from one head, to the next */
    long long heads, words; /* how many heads a token has, and words a head */
    long long value;      /* of each word */
};

struct arguments {
    long long batch, bound;
    struct lengths q, kv;
    long long is_wide; /* offsets are 64-bit integers */
    long long count;   /* of ragged tensors */
    struct offsets offsets[9];
    const int *table; /* [batch, columns], the pages of each sequence; or NULL */
    long long row_stride, columns;
    long long page_size; /* in tokens */
    long long pages;     /* of each sequence in page_table */
    int *page_table;     /* [bound, pages] */
    long long cleared;   /* tensors with rows to clear */
    struct rows rows[4];
};

static __device__ int length(const struct lengths *of, int i, int batch) {
    if (i >= batch) return 0;
    if (of->given) return of->given[i];
    return of->cumulative ? of->cumulative[i + 1] - of->cumulative[i] : (int)of->all;
}

/* Keys of sequence i: at most what its row of the block table, and the plan, have pages for. */
static __device__ int keys_of(const struct arguments *a, int i, int batch) {
    const int keys = length(&a->kv, i, batch);
    if (!a->table) return keys;
    const long long pages = a->columns < a->pages ? a->columns : a->pages, most = pages * a->page_size;
    return keys > most ? (int)most : keys;
}

/* Clear what lies behind the valid rows of sequence i; where tokens are packed, all rows of queries without keys. */
static __device__ void clear(const struct rows *rows, const struct arguments *a, int i, int first, int step) {
    const int batch = (int)a->batch, keys = keys_of(a, i, batch);
    const struct lengths *of = rows->is_kv ? &a->kv : &a->q;
    const int own = length(of, i, batch), valid = rows->is_kv || keys ? own : 0;
    const int end = of->cumulative ? own : (int)of->all;
    const long long start = (of->cumulative ? of->cumulative[i] : i) * rows->multiplier + valid * rows->token;
    const long long words = (end - valid) * rows->heads * rows->words;
#pragma unroll 1
    for (long long at = first; at < words; at += step) {
        const long long head = at / rows->words, token = head / rows->heads;
        rows->out[start + token * rows->token + head % rows->heads * rows->head + at % rows->words] = rows->value;
    }
}

extern "C" __global__ void cudnn_backend_py_prepare(const struct arguments a) {
    const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    const int batch = (int)a.batch, bound = (int)a.bound, pages = (int)a.pages, count = (int)a.count;
#pragma unroll 1
    for (int i = first; i <= bound; i += step) {
        const int begin = i < batch ? i : batch;
        if (i < bound) {
            a.q.out[i] = length(&a.q, i, batch);
            a.kv.out[i] = keys_of(&a, i, batch);
        }
#pragma unroll 1
        for (int k = 0; k < count; k++) {
            const struct offsets *of = &a.offsets[k];
            const int *cumulative = of->kind == TOKENS_OF_KV ? a.kv.cumulative : a.q.cumulative;
            int token = cumulative ? cumulative[begin] : begin;
            if (of->kind == READ && i < bound && token && token == (cumulative ? cumulative[batch] : batch)) token--;
            const long long offset = token * of->multiplier;
            if (a.is_wide) ((long long *)of->out)[i] = offset;
            else ((int *)of->out)[i] = (int)offset;
        }
    }
    if (a.table) {
#pragma unroll 1
        for (int at = first; at < bound * pages; at += step) {
            const int i = at / pages, page = at % pages;
            const int keys = keys_of(&a, i, batch), used = page < (int)a.columns && page * (int)a.page_size < keys;
            /* Kernels load whole tiles: what they load and mask is a page of the same sequence, not anyone's. */
            a.page_table[at] = keys ? a.table[i * a.row_stride + (used ? page : 0)] : 0;
        }
    }
    if (a.cleared) { /* blocks share the sequences out */
        const int share = (int)gridDim.x / batch, part = (int)blockIdx.x / batch, i = (int)blockIdx.x % batch;
        if (part < share)
#pragma unroll 1
            for (int k = 0; k < (int)a.cleared; k++)
                clear(&a.rows[k], &a, i, part * blockDim.x + threadIdx.x, share * blockDim.x);
    }
}
