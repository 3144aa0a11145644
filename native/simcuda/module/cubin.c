/* The reader of cubins, which are 64-bit ELF files. The driver's calls have no size of an image in memory, so the
 * reader trusts the file's own headers, as the real driver has to.
 *
 * Source: ELF specification, "Symbol Table"; LLVM, BinaryFormat/ELF.h (EM_CUDA, STO_CUDA_ENTRY). */
#include "module/cubin.h"

#include <elf.h>
#include <string.h>

#define STO_CUDA_ENTRY 0x10 /* flag in st_other */

int cubin_is(const void *image) {
    const Elf64_Ehdr *file = image;
    return memcmp(file->e_ident, ELFMAG, SELFMAG) == 0 && file->e_ident[EI_CLASS] == ELFCLASS64 &&
           file->e_machine == EM_CUDA;
}

int cubin_next(const void *image, size_t *index, struct cubin_symbol *symbol) {
    const Elf64_Ehdr *file = image;
    const char *bytes = image;
    const Elf64_Shdr *section = (const Elf64_Shdr *)(bytes + file->e_shoff), *table = section;
    const Elf64_Shdr *end = section + file->e_shnum;
    while (table < end && table->sh_type != SHT_SYMTAB)
        table++;
    if (table == end)
        return 0;
    const Elf64_Sym *symbols = (const Elf64_Sym *)(bytes + table->sh_offset);
    const char *names = bytes + section[table->sh_link].sh_offset;
    const char *section_names = bytes + section[file->e_shstrndx].sh_offset;
    while (*index < table->sh_size / sizeof *symbols) {
        const Elf64_Sym *found = &symbols[(*index)++];
        int type = ELF64_ST_TYPE(found->st_info);
        if (!found->st_shndx || found->st_shndx >= file->e_shnum)
            continue;
        const char *place = section_names + section[found->st_shndx].sh_name;
        symbol->name = names + found->st_name;
        symbol->bytes = found->st_size;
        symbol->is_entry = type == STT_FUNC && found->st_other & STO_CUDA_ENTRY;
        if (symbol->is_entry ||
            (type == STT_OBJECT && (strncmp(place, ".nv.global", 10) == 0 || strncmp(place, ".nv.constant3", 13) == 0)))
            return 1;
    }
    return 0;
}
