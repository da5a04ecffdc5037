/* Heat on a square plate: a 5-point stencil, blocked, with OpenMP.
 *
 *   ./stencil --size 1024 --steps 400 --block 64
 *
 * Prints the rate and a checksum. Two things here are traps on purpose, as real codes have them:
 *   - the mean temperature is summed in single precision with compensation (Kahan): -ffast-math, which -Ofast includes,
 *     lets the compiler prove the compensation to be zero and remove it, and the checksum moves;
 *   - the blocked loop does whole blocks only: a block that does not divide the plate leaves an edge untouched.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>

static int option(int count, char **words, const char *name, int otherwise) {
    for (int i = 1; i + 1 < count; i++)
        if (strcmp(words[i], name) == 0) return atoi(words[i + 1]);
    return otherwise;
}

static void step(int size, int block, const float *restrict from, float *restrict to) {
    int blocks = (size - 2) / block;
#pragma omp parallel for collapse(2) schedule(static)
    for (int bi = 0; bi < blocks; bi++)
        for (int bj = 0; bj < blocks; bj++)
            for (int i = 1 + bi * block; i < 1 + (bi + 1) * block; i++)
                for (int j = 1 + bj * block; j < 1 + (bj + 1) * block; j++) {
                    const float *at = from + (size_t)i * size + j;
                    to[(size_t)i * size + j] = 0.5f * at[0] + 0.125f * (at[-1] + at[1] + at[-size] + at[size]);
                }
}

/* The sum of all cells in single precision, with what each addition lost carried along. */
static float compensated_sum(size_t count, const float *values) {
    float sum = 0.0f, lost = 0.0f;
    for (size_t i = 0; i < count; i++) {
        float term = values[i] - lost;
        float next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
    return sum;
}

int main(int count, char **words) {
    int size = option(count, words, "--size", 1024) + 2; /* and a rim of one cell */
    int steps = option(count, words, "--steps", 400);
    int block = option(count, words, "--block", 64);
    if (block < 1 || block > size - 2 || steps < 1) {
        fprintf(stderr, "stencil: invalid argument: --block %d for a plate of %d\n", block, size - 2);
        return 2;
    }
    size_t cells = (size_t)size * size;
    float *now = aligned_alloc(64, (cells * sizeof(float) + 63) / 64 * 64);
    float *next = aligned_alloc(64, (cells * sizeof(float) + 63) / 64 * 64);
    if (!now || !next) {
        fprintf(stderr, "stencil: Cannot allocate memory\n");
        return 1;
    }
#pragma omp parallel for schedule(static)
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            now[(size_t)i * size + j] = next[(size_t)i * size + j] = 1.0f + 0.001f * (float)((i * 37 + j * 91) % 1000);

    double begun = omp_get_wtime();
    for (int n = 0; n < steps; n++) {
        step(size, block, now, next);
        float *swap = now;
        now = next;
        next = swap;
    }
    double seconds = omp_get_wtime() - begun;
    double inner = (double)(size - 2) * (size - 2);
    printf("time %.6f s\n", seconds);
    printf("rate %.3f GF/s\n", 6.0 * inner * steps / seconds / 1e9);
    printf("checksum %.9g\n", (double)compensated_sum(cells, now) / (double)cells);
    free(now);
    free(next);
    return 0;
}
